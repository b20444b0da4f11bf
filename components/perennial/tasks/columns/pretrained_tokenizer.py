"""Pretrained tokenizer: the `tokenizer.json` of a published model, with its own tokens and ids."""

from collections.abc import Sequence
from typing import Protocol, cast

from perennial.contracts.errors import BadTaskError
from perennial.tasks.columns.tokenization import Encoded, import_package


class PretrainedTokenizer(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode_batch(
        self, texts: Sequence[str], /, *, add_special_tokens: bool = True
    ) -> list[Encoded]:
        """Return the ids of each text."""

    def decode(self, ids: Sequence[int], /, *, skip_special_tokens: bool) -> str:
        """Return the text of ids."""

    def decode_batch(
        self, every: Sequence[Sequence[int]], /, *, skip_special_tokens: bool
    ) -> list[str]:
        """Return the text of each sequence of ids."""

    def get_vocab(self) -> dict[str, int]:
        """Return token → id."""

    def get_vocab_size(self) -> int:
        """Return the number of ids."""

    def id_to_token(self, code: int, /) -> str | None:
        """Return the token of an id; None if there is none."""

    def token_to_id(self, token: str, /) -> int | None:
        """Return the id of a token; None if there is none."""


def load_tokenizer(content: str, most: int | None) -> PretrainedTokenizer:
    """Return a `tokenizers.Tokenizer` that gives at most so many ids, if any, and no padding.

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
    tokenizer.no_truncation()
    if most is not None:
        tokenizer.enable_truncation(most)
    return cast("PretrainedTokenizer", tokenizer)
