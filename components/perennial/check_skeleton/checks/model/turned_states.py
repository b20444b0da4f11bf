"""Find states of a sequence that was read backwards and not turned round again."""

import numpy as np
from torch import Tensor, nn

from perennial.check_skeleton.models import measure_changes, run_model
from perennial.check_skeleton.subject import Subject, select_rows
from perennial.engine.task import Batch, inputs_of

SHORTEST, MOST_PLACES, FEWEST_PLACES = 8, 24, 4
# Of its own size; smaller movements are rounding.
MOVED = 1e-5


def describe_turned_states(subject: Subject, model: nn.Module) -> str:
    """Describe outputs that an input moves from its mirrored place on; empty if there are none.

    A step that is read backwards moves the outputs before its own. Left turned round, its states
    move those from the place as far from the beginning as the step is from the end.
    """
    example = select_rows(subject.train, slice(0, 1))
    output = run_model(model, example)
    for name, tensor in inputs_of(example).items():
        length = tensor.shape[1] if tensor.ndim in (2, 3) else 0
        if length < SHORTEST or output.ndim < 2 or output.shape[1] != length:
            continue
        others = select_rows(subject.train, slice(1, None))[name]
        places = np.linspace(length // 2 + 1, length - 2, MOST_PLACES).round().astype(int)
        first = {
            place: _find_first_move(model, example, name, others, place)
            for place in sorted(set(places.tolist()))
        }
        moving = {place: at for place, at in first.items() if at is not None}
        if len(moving) >= FEWEST_PLACES and all(
            at == length - 1 - place for place, at in moving.items()
        ):
            place, at = next(iter(moving.items()))
            return (
                f"{name}[{place}] moves no output before the one at {at}, as far from the other end"
            )
    return ""


def _find_first_move(
    model: nn.Module, example: Batch, name: str, others: Tensor, place: int
) -> int | None:
    """Return the first output that another value at a place moves; None if none is moved."""
    values = others[:, place]
    own = example[name][:, place]
    different = (values != own).reshape(len(values), -1).any(dim=1).nonzero().flatten()
    if not len(different):
        return None
    changed = example[name].clone()
    changed[:, place] = values[different[:1]]
    before = run_model(model, example)
    moves = measure_changes(before, run_model(model, {**example, name: changed}))
    moved = (moves[0].reshape(moves.shape[1], -1).amax(dim=1) > MOVED).nonzero().flatten()
    return int(moved[0]) if len(moved) else None
