"""What an accelerator makes of the engine, in one command."""
