"""Few rows: whether one to three rows get the same answers as among many."""

from collections.abc import Callable, Iterator

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from perennial.check_skeleton.made_up_inputs import method_of
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, stirred_model
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import predict_batch
from perennial.engine.serving.pyfunc import ServedModel
from perennial.engine.serving.servable import input_columns
from perennial.engine.task import Batch, Task, inputs_of

COUNTS = (1, 2, 3)
MANY = 8
# Kernels for other sizes round by 1e-6 of the largest number; a mean over the batch moves a tenth.
SAME = 1e-3
WAYS = ("the model", "losses", "predictions", "the served model")

Answer = Callable[[pl.DataFrame], Tensor]


@check(
    "few_rows",
    expects=(
        f"one entry per row from {', '.join(WAYS)}, equal for 1, 2 and 3 rows to those among {MANY}"
    ),
    source="most requests to a served model have one row; squeeze() and statistics of the "
    "batch silently change their answers",
    tolerance=f"{SAME:g} of the largest",
)
def check_few_rows(subject: Subject, judge: Judge) -> CheckResult:
    """Check that answers for one to three rows have the right shape and equal those among more."""
    together = subject.task.scored_together
    rows = subject.validation_rows.head(MANY * together)
    model, refused = stirred_model(subject), list[str]()
    ways = dict(_ways(subject, model))
    for way, answer in ways.items():
        try:
            whole = answer(rows)
        except Exception as error:  # user code may raise anything
            if way != WAYS[-1]:
                raise
            refused.append(f"{way}, {len(rows)}: {method_of(error)} raises {error}")
            break
        if way == WAYS[0] and not torch.equal(answer(rows), whole):
            return judge.skipped("outputs are random in evaluation mode: see `modes`")
        for count in COUNTS:
            some = count if way == WAYS[0] else count * together
            try:
                found = answer(rows.head(some))
            except Exception as error:  # user code may raise anything
                refused.append(f"{way}, {some}: {method_of(error)} raises {type(error).__name__}")
                continue
            if wrong := _wrong(found, whole[:some], some):
                return judge.failed(
                    f"{way}: {some} {'row' if some == 1 else 'rows'} {wrong}",
                    hint="a request of that size gets wrong answers: look for squeeze() without a "
                    "dimension, a view or reshape that counts on the batch's size, and means or "
                    "normalisation over dimension 0 in forward, losses or predict",
                )
    if refused:
        return judge.warned(
            "; ".join(refused),
            hint="requests of so few rows fail with an error, and so may the last batch of an "
            "evaluation: look for squeeze() without a dimension, for statistics of the "
            "batch that need two rows or more, and for columns that requests do not have",
        )
    return judge.passed(
        f"1, 2 and 3 rows get the same as among {len(rows)}, from {', '.join(ways)}"
    )


def _ways(subject: Subject, model: nn.Module) -> Iterator[tuple[str, Answer]]:
    """Yield the ways to answer rows; each depends on those before it."""
    task = subject.task

    def encoded(rows: pl.DataFrame) -> Batch:
        return task.encode(rows)

    def outputs(rows: pl.DataFrame) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(**inputs_of(encoded(rows)))
        return found

    def losses(rows: pl.DataFrame) -> Tensor:
        with torch.no_grad():
            batch = encoded(rows)
            return task.losses(model(**inputs_of(batch)), batch)

    def predictions(rows: pl.DataFrame) -> Tensor:
        return predict_batch(task, model, encoded(rows))[1]

    yield WAYS[0], outputs
    yield WAYS[1], losses
    yield WAYS[2], predictions
    if can_be_served(task, subject.validation_rows):
        yield WAYS[3], lambda rows: _served(task, model, rows)


def can_be_served(task: Task, rows: pl.DataFrame) -> bool:
    """Whether a table of requests can hold the rows: pictures and lists need another format."""
    flat = (pl.Binary, pl.List, pl.Array, pl.Struct)
    return not any(isinstance(rows.schema[name], flat) for name in input_columns(task))


def _served(task: Task, model: nn.Module, rows: pl.DataFrame) -> Tensor:
    sent = rows.select(input_columns(task))
    served = ServedModel(task, model, sent.schema).predict(sent.to_pandas())
    return torch.from_numpy(served.to_numpy(dtype=np.float64, copy=True))


def _wrong(found: Tensor, expected: Tensor, rows: int) -> str:
    """Return what is wrong with the answers for a few rows; empty if nothing is."""
    if found.shape[:1] != (rows,) or found.shape != expected.shape:
        return f"give shape {list(found.shape)}, among more rows {list(expected.shape)}"
    if not found.is_floating_point():
        return "" if torch.equal(found, expected) else "give other answers than among more rows"
    size = float(expected.abs().nan_to_num().max()) + SAME
    difference = float((found - expected).abs().nan_to_num().max())
    if difference > SAME * size:
        return f"give answers that differ by {difference:.2g} from those among more rows"
    return ""
