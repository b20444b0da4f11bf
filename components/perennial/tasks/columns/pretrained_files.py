"""Pretrained files: what a published model's snapshot holds beside its weights, as text."""

import sys
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.errors import BadTaskError


def read_pretrained(place: str, option: str, name: str) -> str:
    """Return the content of a file that an option names.

    Args:
        place: A path, looked for beside the contract if it is relative, or an address.
        option: Name of the option, for messages.
        name: Name of the file in a snapshot, for messages.

    Raises:
        BadTaskError: there is no such file.
    """
    # The contract's folder is among them, where the task's own modules are found, too.
    folders = [""] if "://" in place or Path(place).is_absolute() else [*sys.path, str(Path.cwd())]
    for folder in folders:
        address = place if "://" in place else str(Path(folder) / place)
        parent, _, file = address.rpartition("/")
        if "://" not in place and not Path(address).is_file():
            continue
        if (content := open_store(parent or "/").read(file)) is not None:
            return content.decode()
    raise BadTaskError(
        f"model.options.{option}: there is no {place}",
        evidence=f"looked in {', '.join(filter(None, folders[:4])) or 'that place'}",
        action=f"name the `{name}` of the pretrained model's snapshot",
    )


def read_tokenizer(place: str) -> str:
    """Return the content of a tokenizer's file, which `read_pretrained` finds."""
    return read_pretrained(place, "tokenizer", "tokenizer.json")
