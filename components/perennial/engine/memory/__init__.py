"""What a training needs of memory, what fits, and what is given up to save some."""
