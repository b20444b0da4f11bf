"""Pipeline steps, one folder each, and the packages they stand on."""
