"""Check that a loss that compares rows does not take right answers for wrong ones."""

from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.models import evaluated, run_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

BATCHES, MOST_ROWS = 8, 128
FEWEST_PARTS = 4  # different ones: an output that is always the same says nothing
MOST_FALSE = 0.05
PAIRS = 64
ROUNDING = 1e-5  # of a part's largest number
# Of what a wrong answer adds to the gradient: masked and weighted ones add nothing.
PUSHED = 0.3


@check(
    "false_negatives",
    expects=f"at most {MOST_FALSE:.0%} of the rows of a batch with their own answer among those "
    "that the loss pushes away",
    source="in-batch negatives: sentence encoders draw batches without duplicates for this reason; "
    "the gradient of a row's loss by the outputs of rows with an equal part",
    severity="warn",
)
def check_false_negatives(subject: Subject, judge: Judge) -> CheckResult:
    """Check that rows with the same answer are not each other's wrong answers."""
    task = subject.task
    if not (task.needs_whole_batch or task.scored_together > 1):
        return judge.skipped("the loss compares no rows")
    size = min(subject.training.global_batch_size, subject.num_rows(), MOST_ROWS)
    model = evaluated(subject.build_model())
    generator = torch.Generator().manual_seed(subject.seed)
    shares = list[float]()
    for _ in range(BATCHES):
        rows = torch.randperm(subject.num_rows(), generator=generator)[:size]
        batch = select_rows(subject.train, rows)
        output = run_model(model, batch)
        shared = _find_shared(output, batch)
        if shared is None:
            return judge.skipped("the outputs have no parts that could be equal")
        shares.append(_measure_pushed(subject, output, batch, shared))
    share = sum(shares) / len(shares)
    if share <= MOST_FALSE:
        return judge.passed(f"{share:.1%} of the rows of batches of {size}")
    return judge.warned(
        f"{share:.0%} of the rows of a batch have their own answer among the wrong ones, in other "
        f"rows: {size} rows are compared",
        hint="leave candidates that equal the right one out of the comparison, in the loss and in "
        "the metrics, or count them as right: no model can tell them apart",
    )


def _find_shared(output: Tensor, batch: Batch) -> Tensor | None:
    """Return which rows share a part of their output and differ in another, [B, B].

    Parts are the vectors of [B, K, D], or the halves of [B, 2 D], as of question and answer, that
    are equal where an input is; those of single words are no answers. None where outputs have no
    parts.
    """
    if output.ndim == 2 and output.shape[1] % 2 == 0 and len(inputs_of(batch)) > 1:
        output = output.reshape(len(output), 2, -1)
    if output.ndim != 3 or output.shape[1] < 2:
        return None
    parts = output.double()
    rounding = ROUNDING * parts.abs().amax(dim=(0, 2), keepdim=True).clamp_min(1e-12)
    found = [_compare(code) for code in (parts / rounding).round().unbind(dim=1)]
    given = [_compare(tensor.reshape(len(tensor), -1)) for tensor in inputs_of(batch).values()]
    parts_of_inputs = [
        equal
        for equal in found
        if len(np.unique(equal.numpy(), axis=0)) >= FEWEST_PARTS
        and any(_agrees(equal, own) for own in given)
    ]
    shared = torch.zeros(len(output), len(output), dtype=torch.bool)
    for one, other in combinations(parts_of_inputs, 2):
        shared |= one ^ other
    return shared if len(parts_of_inputs) > 1 else None


def _agrees(equal: Tensor, own: Tensor) -> bool:
    """Whether most pairs of rows that are equal in one way are so in another, or none is."""
    pairs = equal & ~torch.eye(len(equal), dtype=torch.bool)
    return not bool(pairs.any()) or float(own[pairs].double().mean()) >= 0.5


def _compare(codes: Tensor) -> Tensor:
    """Return which rows of codes [B, N] are equal, [B, B]."""
    _, numbers = np.unique(codes.numpy(), axis=0, return_inverse=True)
    row = torch.from_numpy(numbers.reshape(-1))
    return row[:, None] == row[None]


def _measure_pushed(subject: Subject, output: Tensor, batch: Batch, shared: Tensor) -> float:
    """Return the share of rows whose loss pushes a row away that shares a part with them.

    A pushed part's gradient points against the own part's, as that of any other wrong answer.
    """
    output = output.clone().requires_grad_()
    losses = subject.task.training_losses(output, batch)
    pushed = 0
    rows = shared.any(dim=1).nonzero().flatten().tolist()
    for row in rows[:PAIRS]:
        (gradient,) = torch.autograd.grad(losses[row], output, retain_graph=True)
        flat = gradient.reshape(len(output), -1)
        along = flat @ flat[row]
        others = ~shared[row]
        others[row] = False
        usual = along[others].median() if bool(others.any()) else torch.tensor(0.0)
        pushed += bool(usual < 0 and (along[shared[row]] <= PUSHED * usual).any())
    return pushed / min(len(rows), PAIRS) * len(rows) / len(output) if rows else 0.0
