"""Contract help: what options mean, and what in a contract stands in the way of a promotion."""
