"""What happens when a training goes wrong: numbers, processes, slow ranks."""
