"""Reference tasks: known architectures that work without writing any code."""
