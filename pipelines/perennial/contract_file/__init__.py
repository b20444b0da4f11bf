"""Contract files: TOML is read as sections, and each mistake answered with the line to write."""
