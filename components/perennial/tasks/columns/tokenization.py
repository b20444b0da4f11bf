"""Tokenization: documents → token ids, as bytes or as byte pairs learned from training rows."""

import importlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import ClassVar, Protocol, Self, cast

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray
from pydantic import JsonValue

from perennial.contracts.errors import BadTaskError

BYTES = 256
BOUNDARY = BYTES
"""The id that stands before and after every document."""
SMALLEST_VOCABULARY = BYTES + 1
IGNORED = -100
"""The label of positions that do not count."""
LEARN_ROWS = 16_384


@dataclass(frozen=True)
class Tokenizer:
    """Text to ids and back: 0 to 255 are bytes, 256 is the boundary, the rest learned pairs.

    Attributes:
        merges: Pairs of ids that become one, in the order in which they were learned.
    """

    merges: tuple[tuple[int, int], ...] = ()
    first: ClassVar[int] = BOUNDARY
    """The id before every document."""
    last: ClassVar[int] = BOUNDARY
    """The id behind it."""
    prefix: ClassVar[int] = 0
    """Bytes that stand before the text of every document: none."""

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Self:
        """Learn byte pairs of texts, the most frequent first; fewer ids when pairs run out.

        `size` counts bytes and boundary, too.

        Raises:
            BadTaskError: pairs are asked for and the package `tokenizers` is not installed.
        """
        if size <= SMALLEST_VOCABULARY:
            return cls()
        package = _tokenizers()
        model = package.Tokenizer(package.models.BPE())
        model.pre_tokenizer = _words(package)
        # One less: the package does not know the boundary, which no text contains.
        model.train_from_iterator(
            texts,
            package.trainers.BpeTrainer(
                vocab_size=size - 1, initial_alphabet=byte_alphabet(), show_progress=False
            ),
        )
        learned = json.loads(model.to_str())["model"]["merges"]
        ids = {letter: byte for byte, letter in enumerate(byte_alphabet())}
        merges = []
        for first, second in learned:
            merges.append((ids[first], ids[second]))
            # Two pairs may spell the same piece, which then has one id.
            ids.setdefault(first + second, len(ids) + 1)
        return cls(tuple(merges))

    @classmethod
    def from_json(cls, merges: JsonValue) -> Self:
        """Read `to_json` back."""
        pairs = cast("list[list[int]]", merges)
        return cls(tuple((first, second) for first, second in pairs))

    def to_json(self) -> JsonValue:
        """Return the merges as lists."""
        return [[first, second] for first, second in self.merges]

    @cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """Return the bytes of each id; none for the boundary."""
        pieces = [*(bytes([value]) for value in range(BYTES)), b""]
        known = set(pieces)
        for first, second in self.merges:
            piece = pieces[first] + pieces[second]
            if piece not in known:
                known.add(piece)
                pieces.append(piece)
        return tuple(pieces)

    def keys(self, size: int) -> list[Hashable]:
        """Return what each of `size` ids stands for: its bytes, or its number if it is unused."""
        return [*self.pieces, *range(len(self.pieces), size)]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of bytes of each id."""
        return np.array([len(piece) for piece in self.pieces])

    def encode(self, texts: Sequence[str]) -> list[NDArray[np.int32]]:
        """Return the ids of each text, without boundaries, which together spell its UTF-8 bytes.

        Raises:
            BadTaskError: the package `tokenizers` is needed and not installed, or its ids spell
                more or fewer bytes than the text has.
        """
        if not self.merges:
            return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) for text in texts]
        found = self._encoder.encode_batch_fast(list(texts), add_special_tokens=False)
        every = [np.asarray(each.ids, dtype=np.int32) for each in found]
        for text, ids in zip(texts, every, strict=True):
            spelled, raw = int(self.lengths[ids].sum()), len(text.encode())
            if spelled != raw:
                raise BadTaskError(
                    "the tokens of a text do not encode its bytes, so metrics per byte are "
                    "undefined",
                    evidence=f"a text of {raw:,} bytes became {len(ids):,} tokens of {spelled:,}",
                    action="install the version of `tokenizers` that the model was trained with, "
                    "or set vocab_size = 257 for bytes alone",
                )
        return every

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are not a whole character become U+FFFD."""
        pieces = self.pieces
        known = (pieces[index] for index in ids if 0 <= index < len(pieces))
        return b"".join(known).decode(errors="replace")

    @cached_property
    def _encoder(self) -> "_Encoder":
        package, alphabet = _tokenizers(), byte_alphabet()
        spelled = ["".join(alphabet[byte] for byte in piece) for piece in self.pieces]
        encoder = package.Tokenizer(
            package.models.BPE(
                vocab={text: index for index, text in enumerate(spelled) if index != BOUNDARY},
                merges=[(spelled[first], spelled[second]) for first, second in self.merges],
            )
        )
        encoder.pre_tokenizer = _words(package)
        return cast("_Encoder", encoder)


def texts_of(rows: pl.LazyFrame, column: str) -> Iterator[str]:
    """Yield the texts of a column that are not missing, with a part in memory at a time."""
    texts = rows.select(pl.col(column).drop_nulls())
    for part in texts.collect_batches(chunk_size=LEARN_ROWS, maintain_order=True):
        yield from part.to_series()


class Encoded(Protocol):
    """What is used of `tokenizers.Encoding`."""

    @property
    def ids(self) -> ArrayLike:
        """Return the ids, shape [T]."""

    @property
    def offsets(self) -> ArrayLike:
        """Return where each token begins and ends in the text, in characters, shape [T, 2].

        Both are 0 for special tokens, which no text contains.
        """


@dataclass(frozen=True)
class EncodedBytes:
    """Ids of the beginning of a text, in the form of `Encoded`."""

    ids: NDArray[np.int32]
    text: str
    tokenizer: Tokenizer

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Return the characters of which each token has some bytes."""
        lengths = self.tokenizer.lengths[self.ids]
        ends = np.cumsum(lengths)
        begins_character = (np.frombuffer(self.text.encode(), np.uint8) & 0xC0) != 0x80
        characters = np.concatenate([[0], np.cumsum(begins_character)])
        first = np.minimum(ends - lengths + 1, len(begins_character))
        return np.stack([np.maximum(characters[first] - 1, 0), characters[ends]], axis=1)


class _Encoder(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Encoded]: ...


def _words(package: ModuleType) -> object:
    """Cuts texts into words, spaces included, which no pair crosses."""
    return package.pre_tokenizers.ByteLevel(add_prefix_space=False)


def byte_alphabet() -> list[str]:
    """Return the printable letter for each byte: itself, or one from 256 on (GPT-2's)."""
    kept = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1)}
    kept |= set(range(ord("®"), ord("ÿ") + 1))
    others = [byte for byte in range(BYTES) if byte not in kept]
    replaced = {byte: BYTES + number for number, byte in enumerate(others)}
    return [chr(replaced.get(byte, byte)) for byte in range(BYTES)]


def _tokenizers() -> ModuleType:
    return import_package(
        "tokenizers",
        f"model.options.vocab_size above {SMALLEST_VOCABULARY}",
        "pip install 'perennial[text]', or set vocab_size = 257 for bytes alone",
    )


def import_package(name: str, needed_by: str, action: str) -> ModuleType:
    """Import a package that only some options or tasks need.

    Raises:
        BadTaskError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BadTaskError(
            f"{needed_by} needs the package `{name}`", evidence=str(error), action=action
        ) from error
