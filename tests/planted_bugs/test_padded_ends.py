"""Lists that are padded behind, in front of a model that reads the last position by itself."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from mixed_numbers import TwoClasses, subject_of
from perennial.check_skeleton.checks.model.texts import check_padding_independence
from perennial.engine.task import LABEL

ROWS, LONGEST, CODES, WIDTH = 800, 9, 40, 16


class LastAndMean(nn.Module):
    """What was seen last beside the mean of all that is no padding."""

    def __init__(self):
        super().__init__()
        self.items, self.head = nn.Embedding(CODES, WIDTH, padding_idx=0), nn.Linear(2 * WIDTH, 1)

    def forward(self, seen):
        x, known = self.items(seen), (seen != 0).unsqueeze(-1)
        mean = (x * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)
        return self.head(torch.cat([mean, self.last(x, seen)], dim=1))[:, 0]

    def last(self, x, seen):
        return x[:, -1]


class LastOfEach(LastAndMean):
    """The last item by the length of the list."""

    def last(self, x, seen):
        return x[torch.arange(len(x)), (seen != 0).sum(dim=1) - 1]


class Query(LastAndMean):
    """The last item asks, all items answer."""

    def forward(self, seen):
        x = self.items(seen)
        query = self.last(x, seen)
        scores = torch.einsum("bd,btd->bt", query, x).masked_fill(seen == 0, -1e9)
        pooled = torch.einsum("bt,btd->bd", scores.softmax(dim=1), x)
        return self.head(torch.cat([pooled, query], dim=1))[:, 0]


class Convolved(LastAndMean):
    """The loudest of each pair of neighbours beside the last item."""

    def __init__(self):
        super().__init__()
        self.pairs = nn.Conv1d(WIDTH, WIDTH, 2)

    def forward(self, seen):
        x = self.items(seen)
        loudest = self.pairs(x.transpose(1, 2)).relu().amax(dim=2)
        return self.head(torch.cat([loudest, self.last(x, seen)], dim=1))[:, 0]


class Flattened(LastAndMean):
    """A weight for each position and number."""

    def __init__(self):
        super().__init__()
        self.items, self.head = nn.Embedding(CODES, 2, padding_idx=0), nn.Linear(2 * LONGEST, 1)

    def forward(self, seen):
        return self.head(self.items(seen).flatten(1))[:, 0]


class BothWays(LastAndMean):
    """Recurrence in both directions, over padding, too."""

    def __init__(self):
        super().__init__()
        self.steps = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)

    def forward(self, seen):
        _, states = self.steps(self.items(seen))
        return self.head(torch.cat(states.unbind(), dim=1))[:, 0]


class Even(LastAndMean):
    """The mean alone."""

    def last(self, x, seen):
        return torch.zeros_like(x[:, 0])


def examine(model, folder, *, is_left, seed=0):
    class Lists(TwoClasses):
        def fit(self, train):
            self.fitted = {}

        def encode(self, rows):
            seen = torch.zeros(len(rows), LONGEST, dtype=torch.long)
            for row, items in enumerate(rows["seen"].to_list()):
                start = LONGEST - len(items) if is_left else 0
                seen[row, start : start + len(items)] = torch.tensor(items)
            labels = {LABEL: rows["label"].to_torch().float()} if "label" in rows.columns else {}
            return {"seen": seen, **labels}

        def build_model(self):
            return model()

    generator = np.random.default_rng(3)
    lengths = np.minimum(generator.integers(3, LONGEST + 4, ROWS), LONGEST)
    seen = [generator.integers(1, CODES, length).tolist() for length in lengths]
    label = [int(each[-1] % 2) for each in seen]
    frame = pl.DataFrame({"row": range(ROWS), "seen": seen, "label": label})
    return check_padding_independence(subject_of(Lists, frame, folder).reseeded(seed))


@pytest.mark.parametrize("model", [LastAndMean, Query, Convolved], ids=lambda each: each.__doc__)
def test_padding_where_the_last_position_is_read_fails(model, tmp_path):
    found = examine(model, tmp_path, is_left=False)
    assert found.outcome == "failed", found.measured
    assert "end in padding" in found.measured


@pytest.mark.parametrize(
    ("model", "is_left"),
    [(LastAndMean, True), (Query, True), (Convolved, True), (LastOfEach, False), (Even, False)],
    ids=lambda each: getattr(each, "__doc__", ""),
)
def test_padding_that_leaves_the_last_item_in_its_place_does_not_fail(model, is_left, tmp_path):
    found = examine(model, tmp_path, is_left=is_left)
    assert found.outcome != "failed", found.measured


@pytest.mark.parametrize("model", [Flattened, BothWays], ids=lambda each: each.__doc__)
def test_a_large_weight_at_the_last_position_by_chance_does_not_fail(model, tmp_path):
    found = [examine(model, tmp_path / str(n), is_left=False, seed=n) for n in range(8)]
    assert not any(each.outcome == "failed" for each in found), [each.measured for each in found]
