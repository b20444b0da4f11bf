"""Sizes that tensor cores dislike are named where tensor cores compute, and nowhere else."""

import pytest
import torch
from torch import nn

from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.profiling.dimensions import alignment, find_odd_dimensions

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
EVEN = BatchPlan(64, 32, 2)


class Decoder(nn.Module):
    def __init__(self, vocabulary=50257, width=64):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.hidden = nn.Linear(width, 4 * width)
        self.head = nn.Linear(width, vocabulary)
        self.gate = nn.Linear(width, 3)  # a thousandth of the weights


def hints(model, device=GPU, plan=EVEN, **training):
    return find_odd_dimensions(model, TrainingSection(**training), device, plan)


def test_a_vocabulary_is_named_with_the_next_multiple():
    embedding, head = hints(Decoder(), precision="bf16")
    assert embedding.startswith("embedding.weight is 50,257 x 64: tensor cores need multiples of 8")
    assert "50,264 for 50,257" in head


@pytest.mark.parametrize("width", [63, 100])
def test_a_width_is_named_at_each_large_matrix(width):
    named = hints(Decoder(50264, width), precision="fp16")
    assert [hint.split(" is ")[0] for hint in named] == ["embedding.weight", "head.weight"]


def test_passes_of_odd_size_are_named():
    (hint,) = hints(Decoder(50304), plan=BatchPlan(60, 64, 2), precision="bf16")
    assert "passes have up to 30 rows" in hint


@pytest.mark.parametrize(
    ("model", "device", "training"),
    [
        (Decoder(50304), GPU, {"precision": "bf16"}),
        (Decoder(), CPU, {"precision": "bf16"}),
        (Decoder(), GPU, {"precision": "fp32"}),  # no tensor cores
        (Decoder(50260, 60), GPU, {"allow_tf32": True}),  # four numbers of TF32 are 16 bytes
    ],
)
def test_no_hint_where_it_would_not_matter(model, device, training):
    assert hints(model, device, **training) == ()


@pytest.mark.parametrize(
    ("training", "device", "multiple"),
    [
        ({"precision": "bf16"}, GPU, 8),
        ({"precision": "fp16"}, GPU, 8),
        ({"allow_tf32": True}, GPU, 4),
        ({}, GPU, 1),
        ({"precision": "bf16"}, CPU, 1),
    ],
)
def test_the_multiple_follows_from_precision_and_device(training, device, multiple):
    assert alignment(TrainingSection(**training), device) == multiple
