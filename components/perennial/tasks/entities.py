"""Entities: spans of words that tags such as `B-ORG I-ORG` mark, counted where two agree."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

OUTSIDE = "O"
_WHOLE = "whole"
_TAG = re.compile(r"([BIESLUM])-(.+)")
_BARE = re.compile(r"[BIESLUM]")
# As conlleval and seqeval read IOB1, IOB2, IOBES, BILOU and BMES alike.
_BEGINS, _ENDS = ("B", "S", "U", _WHOLE), ("E", "S", "L", "U", _WHOLE)


@dataclass(frozen=True)
class Tags:
    """What each of K tags means.

    Attributes:
        kinds: Kind of entity, int64 [K]; -1 for a word outside of entities.
        begins: Whether a word with the tag is the first one of an entity, bool [K].
        ends: Whether it is the last one, bool [K].
    """

    kinds: Tensor
    begins: Tensor
    ends: Tensor

    @classmethod
    def read(cls, tags: Sequence[str]) -> "Tags":
        """Read tags: `O` is outside, and without a prefix a tag is an entity of one word."""
        parts = [_split(tag, has_outside=OUTSIDE in tags) for tag in tags]
        kinds = sorted({kind for place, kind in parts if place})
        return cls(
            torch.tensor([kinds.index(kind) if place else -1 for place, kind in parts]),
            torch.tensor([place in _BEGINS for place, _ in parts]),
            torch.tensor([place in _ENDS for place, _ in parts]),
        )

    def count(self, predicted: Tensor, true: Tensor, is_word: Tensor) -> Tensor:
        """Count the entities of each row.

        Args:
            predicted: Codes of tags, [B, T].
            true: Codes of tags, [B, T].
            is_word: Which positions have a tag, [B, T]; entities reach across others.

        Returns:
            int64 [B, 3]: those that agree in kind, first and last word; true ones; predicted ones.
        """
        # Words first, in their order: the positions between them must not end an entity.
        order = is_word.logical_not().int().argsort(dim=1, stable=True)
        is_word = is_word.gather(1, order)
        kinds, first, last = self._spans(true.gather(1, order), is_word)
        other_kinds, other_first, other_last = self._spans(predicted.gather(1, order), is_word)
        agree = first & other_first & (kinds == other_kinds) & (last == other_last)
        return torch.stack([each.sum(dim=1) for each in (agree, first, other_first)], dim=1)

    def _spans(self, codes: Tensor, is_word: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each word's kind, whether an entity begins there, and where it then ends."""
        codes = torch.where(is_word, codes, 0).long()
        tables = (each.to(codes.device) for each in (self.kinds, self.begins, self.ends))
        kinds, begins, ends = (table[codes] for table in tables)
        kinds = kinds.masked_fill(~is_word, -1)
        before = kinds.roll(1, dims=1)
        before[:, 0] = -1
        begins = begins | (kinds != before) | ends.roll(1, dims=1)
        first = begins & (kinds >= 0)
        continues = (kinds >= 0) & ~first
        places = torch.arange(codes.shape[1], device=codes.device)
        stops = torch.where(continues, codes.shape[1], places)
        # The next word that does not continue the entity, at or after each word.
        stops = stops.flip(1).cummin(dim=1).values.flip(1).roll(-1, dims=1)
        stops[:, -1] = codes.shape[1]
        return kinds, first, stops


def _split(tag: str, *, has_outside: bool) -> tuple[str, str]:
    """Return the place of a word in its entity and the entity's kind; both empty for `O`."""
    if tag == OUTSIDE:
        return "", ""
    if found := _TAG.fullmatch(tag):
        return found[1], found[2]
    if has_outside and _BARE.fullmatch(tag):
        return tag, ""
    return _WHOLE, tag
