"""Pretrained tokenizer: the `tokenizer.json` of a published model, with its own tokens and ids."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from perennial.clients.object_store import open_store
from perennial.contracts.errors import BadTaskError
from perennial.tasks.columns.tokenization import Encoded, import_package


class PretrainedTokenizer(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode_batch(self, texts: Sequence[str], /) -> list[Encoded]:
        """Return the ids of each text."""

    def decode(self, ids: Sequence[int], /, *, skip_special_tokens: bool) -> str:
        """Return the text of ids."""

    def get_vocab_size(self) -> int:
        """Return the number of ids."""

    def id_to_token(self, code: int, /) -> str | None:
        """Return the token of an id; None if there is none."""

    def token_to_id(self, token: str, /) -> int | None:
        """Return the id of a token; None if there is none."""


def read_tokenizer(place: str) -> str:
    """Return the content of a tokenizer's file.

    Args:
        place: A path, looked for beside the contract if it is relative, or an address.

    Raises:
        BadTaskError: there is no such file.
    """
    # The contract's folder is among them, where the task's own modules are found, too.
    folders = [""] if "://" in place or Path(place).is_absolute() else [*sys.path, str(Path.cwd())]
    for folder in folders:
        address = place if "://" in place else str(Path(folder) / place)
        parent, _, name = address.rpartition("/")
        if "://" not in place and not Path(address).is_file():
            continue
        if (content := open_store(parent or "/").read(name)) is not None:
            return content.decode()
    raise BadTaskError(
        f"model.options.tokenizer: there is no {place}",
        evidence=f"looked in {', '.join(filter(None, folders[:4])) or 'that place'}",
        action="name the `tokenizer.json` of the pretrained model's snapshot",
    )


def load_tokenizer(content: str, most: int) -> PretrainedTokenizer:
    """Return a `tokenizers.Tokenizer` that gives at most so many ids, and no padding.

    Raises:
        BadTaskError: the package is not installed, or the content is not a tokenizer's.
    """
    package = import_package(
        "tokenizers", "model.options.tokenizer", "pip install 'perennial[transformers]'"
    )
    try:
        tokenizer = package.Tokenizer.from_str(content)
    except Exception as error:  # the package raises `Exception` itself
        raise BadTaskError(
            "model.options.tokenizer is not a file of the package `tokenizers`",
            evidence=str(error).partition("\n")[0][:200],
            action="name the `tokenizer.json` of the pretrained model's snapshot",
        ) from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(most)
    return cast("PretrainedTokenizer", tokenizer)
