"""What figures say how good predictions are: by name, with what each needs and means."""
