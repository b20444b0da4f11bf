"""Draft of a first contract: what is known of the columns, and what each is taken for."""

import re
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import polars as pl
from pydantic import JsonValue

Kind: TypeAlias = Literal["table", "image", "text", "custom"]
# With more values than this, a column of integers is an amount; with a tenth of it, a code.
MOST_CLASSES = 20
ROW_ID = "row_id"  # numbers the rows where nothing else identifies them
WORDS_OF_A_TEXT = 3  # fewer on average: names and codes
# Scripts that are written without spaces, of which a word has two to four letters.
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"
LETTERS_OF_A_WORD = 4


@dataclass(frozen=True)
class Column:
    """What is known of a column.

    Attributes:
        distinct: Number of its values, without nulls.
        nulls: Number of missing values.
        frequent: Number of rows whose value has enough rows to be learned as a category.
        length: Mean bytes of a text; 0 for others.
        span: Largest minus smallest of integers; days of a time.
        words: About how many words a text has in the mean; 0 for others.
    """

    name: str
    dtype: pl.DataType
    distinct: int
    nulls: int
    frequent: int
    length: float
    span: float
    words: float

    @property
    def is_sentences(self) -> bool:
        """Whether its values are texts of several words, rather than categories or ids."""
        return self.words >= WORDS_OF_A_TEXT

    @property
    def is_text(self) -> bool:
        """Whether its values are texts."""
        return self.dtype in (pl.String, pl.Categorical)

    @property
    def is_class(self) -> bool:
        """Whether its values are classes rather than amounts."""
        most = MOST_CLASSES if self.dtype.is_integer() else 2 if self.dtype.is_float() else 0
        return self.is_text or self.dtype == pl.Boolean or self.distinct <= most

    @property
    def is_birth(self) -> bool:
        """Whether its name is that of a date of birth, at which nothing is predicted."""
        return re.search(r"birth|(?:^|_)dob(?:$|_)", self.name.lower()) is not None

    @property
    def is_identifier(self) -> bool:
        """Whether its name is that of an identifier."""
        return re.search(r"(?:^|_)(?:id|key|uuid)$|[a-z]I[dD]$", self.name) is not None


def count_words(column: pl.Expr) -> pl.Expr:
    """Count the words of texts: their spaces and one, and the letters that need no spaces."""
    unspaced = column.str.count_matches(UNSPACED) / LETTERS_OF_A_WORD
    return column.str.count_matches(r"\S+") + unspaced


@dataclass
class Draft:
    """A contract in the making.

    Attributes:
        text: The column of texts that a label of classes is predicted from; empty for others.
        label_is_text: Whether the label is a text, of which the model learns what comes next.
        history: How many values before a row the model learns from, of a series; 0 for others.
        notes: What was guessed, and why, for people.
    """

    kind: Kind
    columns: dict[str, Column]
    rows: int
    label: str = ""
    time: str | None = None
    ids: list[str] = field(default_factory=list)
    meta: list[str] = field(default_factory=list)
    features: list[str] = field(default_factory=list)
    options: dict[str, JsonValue] = field(default_factory=dict)
    text: str = ""
    label_is_text: bool = False
    history: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> str:
        """Return the key of batch size, epochs and learning rate."""
        return "text classes" if self.text else self.kind

    def leave_out(self, name: str, why: str) -> None:
        """Keep a column from the model."""
        self.meta.append(name)
        self.notes.append(f"meta: {name!r}, {why}")
