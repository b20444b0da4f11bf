"""Document tokenizer: a published causal model's own tokens, with documents between two of them.

Metrics per byte need tokens that spell the text: each has a number of bytes, and together they have
those of the document. A tokenizer that loses some of a text, such as its capitals, is refused.
"""

import json
import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import BadTaskError, join_names
from perennial.tasks.columns.pretrained_tokenizer import load_tokenizer
from perennial.tasks.columns.tokenization import byte_alphabet

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""What ends a document in GPT-2 and Qwen, Llama 3, Llama 2, and Gemma."""
SPACE = "▁"  # how SentencePiece writes it
ONE_BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how it writes a byte of a character that it lacks
SHOWN = 8  # tokens in a message


class DocumentTokenizer:
    """Text to ids and back, in the form of `Tokenizer`, by the content of a `tokenizer.json`.

    Attributes:
        content: The file.
        first: The id before every document: the one that the tokenizer puts there, such as Llama's
            `<s>`; without it, the end of the document before.
        last: The id behind every document, and of padding.
        prefix: Bytes that the tokenizer puts before a text: 1 where it begins with a space.
    """

    def __init__(self, content: str, end: str = "") -> None:
        """Read the file; `end` is the token behind a document, empty for one of `ENDS`.

        Raises:
            BadTaskError: the package is not installed, the content is not a tokenizer's, there is
                no such token, or several stand before a text.
        """
        self.content = content
        self._tokenizer = load_tokenizer(content, None)
        self._file: dict[str, Any] = json.loads(content)
        added = {str(each["content"]): int(each["id"]) for each in self._file["added_tokens"]}
        self.end = _choose_end(added, end)
        self.last = added[self.end]
        # One letter with and without special tokens shows what the tokenizer puts before a text.
        plain, marked = self._ids("a"), self._tokenizer.encode_batch(["a"])[0].ids
        before = np.asarray(marked).tolist()
        before = before[: before.index(plain[0])]
        if len(before) > 1:
            raise BadTaskError(
                f"the tokenizer puts {len(before)} tokens before a text, not one",
                evidence=", ".join(str(self._tokenizer.id_to_token(each)) for each in before),
                action="choose another model: documents of this task begin with one token",
            )
        self.first = before[0] if before else self.last
        self.prefix = int(self.lengths[plain].sum()) - len("a")

    @property
    def size(self) -> int:
        """Return the number of ids."""
        return len(self.lengths)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of each id; none for the end of a document."""
        codes = self._tokenizer.get_vocab()
        found = np.zeros(max(codes.values()) + 1, np.int64)
        added = {each["content"] for each in self._file["added_tokens"]}
        letters = set(byte_alphabet()) if "ByteLevel" in _types(self._file["decoder"]) else set()
        for token, code in codes.items():
            if token in added:
                found[code] = len(token.encode())
            elif letters and letters.issuperset(token):
                found[code] = len(token)  # a letter for each byte
            elif ONE_BYTE.fullmatch(token):
                found[code] = 1
            else:
                found[code] = len(token.replace(SPACE, " ").encode())
        found[self.last] = 0
        return found

    def keys(self, size: int) -> list[Hashable]:
        """Return the token of each of `size` ids, or its number if it is unused."""
        return [self._tokenizer.id_to_token(code) or code for code in range(size)]

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text, without special tokens around it, which spell it.

        Texts of the same characters in another normal form of Unicode are the same text.

        Raises:
            BadTaskError: the ids of a text stand for another one.
        """
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        every = [np.asarray(each.ids, dtype=np.int32) for each in found]
        back = self._tokenizer.decode_batch(
            [each.tolist() for each in every], skip_special_tokens=False
        )
        for text, ids, read in zip(texts, every, back, strict=True):
            self._require_spelled(text, ids, read)
        return every

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def _ids(self, text: str) -> list[int]:
        (found,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return [int(code) for code in np.asarray(found.ids)]

    def _require_spelled(self, text: str, ids: NDArray[np.int32], read: str) -> None:
        """Check that ids are read back as their text, and that their bytes are the text's."""
        # Some tokenizers read a text in its normal form.
        forms = text, unicodedata.normalize("NFC", text)
        same = next((each for each in forms if read in (each, " " * self.prefix + each)), "")
        spelled = int(self.lengths[ids].sum()) - (self.prefix if len(ids) else 0)
        if (same or not text) and spelled == len(same.encode()):
            return
        if self.end in text:
            raise BadTaskError(
                f"a text contains {self.end}, which ends documents",
                evidence=f"the text begins with {text[:60]!r}",
                action="make a row of each document, or remove it",
            )
        raise BadTaskError(
            "the tokens of a text do not encode all of it, so metrics per byte are undefined",
            evidence=f"{text[:60]!r} became {read[:60]!r}; {spelled:,} bytes, "
            f"not {len(text.encode()):,}",
            action="remove spaces at the beginning of texts, which some tokenizers lose; if other "
            "characters are lost, choose a model whose tokenizer keeps them, by bytes",
        )


def _types(part: object) -> set[str]:
    """Return the types of a part of a tokenizer, and of the parts of a sequence."""
    if not isinstance(part, dict):
        return set()
    inner = [_types(each) for each in part.get("decoders", [])]
    return {str(part.get("type"))}.union(*inner)


def _choose_end(added: dict[str, int], asked: str) -> str:
    """Return the token that ends a document.

    Raises:
        BadTaskError: it is no special token, or none is asked for and several may be it.
    """
    found = [asked] if asked in added else [each for each in ENDS if each in added and not asked]
    if len(found) == 1:
        return found[0]
    what = f"has no special token {asked!r}" if asked else "does not tell what ends a document"
    raise BadTaskError(
        f"the tokenizer {what}",
        evidence=f"its special tokens are: {join_names(sorted(added), SHOWN) or 'none'}",
        action='write end_of_text = "…"  # in [model.options], the special token that stood behind '
        "each document when the model was trained",
    )
