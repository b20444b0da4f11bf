"""Find states of a sequence that was read backwards and not turned round again."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor, nn

from perennial.check_skeleton.models import measure_changes, run_model
from perennial.check_skeleton.subject import Subject, select_rows
from perennial.engine.task import inputs_of

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
        first = {
            place: _find_first_move(output, run_model(model, {**example, name: changed}))
            for place, changed in _change_places(tensor, others)
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


def _change_places(own: Tensor, others: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield places behind the middle of a sequence [1, T, …], and it with another value there."""
    length = own.shape[1]
    places = np.linspace(length // 2 + 1, length - 2, MOST_PLACES).round().astype(int)
    for place in sorted(set(places.tolist())):
        values = others[:, place]
        differs = (values != own[:, place]).reshape(len(values), -1).any(dim=1)
        if bool(differs.any()):
            changed = own.clone()
            changed[:, place] = values[differs][:1]
            yield place, changed


def _find_first_move(before: Tensor, after: Tensor) -> int | None:
    """Return the first step at which two outputs [1, T, …] differ; None if they are the same."""
    moves = measure_changes(before, after)[0]
    moved = (moves.reshape(len(moves), -1).amax(dim=1) > MOVED).nonzero().flatten()
    return int(moved[0]) if len(moved) else None
