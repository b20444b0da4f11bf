"""What the command line understands, without running it."""

import typer

from perennial.cli import app


def parse(words):
    """The verb and its arguments by name; raises where one does not exist or is missing."""
    name, *rest = words
    verb = typer.main.get_command(app).commands[name]
    return name, verb.make_context(name, rest).params
