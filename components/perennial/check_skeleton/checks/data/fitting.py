"""Check preprocessing statistics: learned from exactly the rows given to `fit`, and saved."""

import json
from collections.abc import Mapping
from dataclasses import replace

import polars as pl
import polars.selectors as cs
import torch
from pydantic import JsonValue
from torch import Tensor

from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, evaluated, select_head
from perennial.contracts.section import canonical_json
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

State = dict[str, JsonValue]


@check(
    "statistics_scope",
    expects="the same state from the same rows, a different state from different rows",
    source="guides: statistics computed on train and validation are a silent failure; "
    "facts/data §4: refit and compare",
    needs_losses=False,
)
def check_statistics_scope(subject: Subject, judge: Judge) -> CheckResult:
    """Check that `fit` learns from its argument alone."""
    train = subject.train_rows
    first, again = _fit(subject, train), _fit(subject, train)
    if canonical_json(first) != canonical_json(again):
        return judge.failed(
            "fitting the same rows twice gives different states",
            hint="fit must be deterministic: sort sets and groups, seed random numbers",
        )
    if not first:
        return judge.passed("the task fits nothing")
    others = {name: _try_to_fit(subject, rows) for name, rows in _make_variants(subject).items()}
    follows = [
        n for n, state in others.items() if state is None or not _is_same_state(state, first)
    ]
    if not follows:
        return judge.failed(
            f"the state is the same for train, {', '.join(others)}",
            hint="fit ignores its argument: it reads the data elsewhere, validation and test "
            "included. Constants belong in the code, not in the state",
        )
    leaves = [_list_leaves(state) for state in others.values() if state is not None]
    fixed = [
        path
        for path, value in _list_leaves(first).items()
        if isinstance(value, float)
        and not value.is_integer()
        and leaves
        and all(other.get(path) == value for other in leaves)
    ]
    if fixed:
        return judge.warned(
            f"{len(fixed)} fitted numbers do not depend on the rows: {', '.join(fixed[:6])}",
            hint="are they computed from all data, validation and test included? Constants belong "
            "in the code, not in the state",
        )
    return judge.passed(f"the state changes with its rows: {', '.join(follows)}")


@check(
    "state_round_trip",
    expects=("a new task with the loaded state encodes, predicts and builds like the fitted one"),
    source="the served model is restored by load_state alone; training-serving skew",
    needs_losses=False,
)
def check_state_round_trip(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the saved state is all that a served model needs."""
    try:
        stored = json.loads(canonical_json(subject.task.state()))
    except (TypeError, ValueError) as error:
        return judge.failed(
            f"state() is not valid JSON: {error}",
            hint="return plain numbers, text, lists and dicts",
        )
    restored = subject.make_task()
    restored.load_state(stored)
    rows = subject.validation_rows.head(64)
    expected, batch = subject.task.encode(rows), restored.encode(rows)
    different = [n for n in expected if n not in batch or not _are_equal(expected[n], batch[n])]
    different += [] if restored.kind == subject.task.kind else ["kind"]
    if canonical_json(restored.state()) != canonical_json(stored):
        different.append("state()")
    if different:
        return judge.failed(
            f"after load_state these differ: {', '.join(different)}",
            hint="keep everything that fit learned in state() and restore it in load_state(). JSON "
            "objects come back sorted by key, so keep an order in a list",
        )
    model = evaluated(subject.build_model())
    twin = replace(subject, task=restored, train_rows=rows, validation_rows=rows)
    served = evaluated(twin.build_model())
    served.load_state_dict(model.state_dict())
    with torch.no_grad():
        inputs = inputs_of(select_head(batch, 64))
        outputs = subject.task.predict(model(**inputs)), restored.predict(served(**inputs))
    if not _are_equal(*outputs):
        return judge.failed(
            "predictions differ after load_state, with equal weights",
            hint="predict or build_model uses something that is not in the state",
        )
    return judge.passed(f"restored from {len(canonical_json(subject.task.state()))} bytes of JSON")


def _are_equal(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors are equal to the last bit; NaN is equal to NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    return torch.equal(first.nan_to_num(0.5), second.nan_to_num(0.5)) and torch.equal(
        first.isnan(), second.isnan()
    )


def _make_variants(subject: Subject) -> dict[str, pl.DataFrame]:
    """Return samples of which the statistics must differ: other rows, labels or values."""
    train = subject.train_rows
    label = pl.col(subject.task.columns.label)
    half = train.sample(fraction=0.5, seed=subject.seed)
    more = pl.concat([train, subject.validation_rows])
    # Every eighth row of the most frequent label, or of the upper half, is kept, so that all
    # classes remain but their shares move.
    is_number = train.schema[subject.task.columns.label].is_numeric()
    common = label > label.median() if is_number else pl.lit(value=False)
    is_flat = not train.schema[subject.task.columns.label].is_nested()
    if subject.task.kind != "regression" and is_flat:
        common = label == train[subject.task.columns.label].mode().first()
    thinned = (
        train.with_row_index("__row").filter(~common | (pl.col("__row") % 8 == 0)).drop("__row")
    )
    features = cs.by_name(list(subject.task.columns.features))
    # Integers stay integers: a fit may count or index by them.
    moved = train.with_columns(
        (features & cs.float()) * 2 + 1,
        # Hashes may be larger than any Int64.
        (features & cs.integer()).cast(pl.Int64, strict=False) * 2 + 1,
    )
    return {
        "half of train": half,
        "train and validation": more,
        "train with fewer common labels": thinned,
        "train with moved numbers": moved,
        # Counts of classes and vocabularies are the same for any larger part.
        "one row of train": train.head(1),
    }


def _fit(subject: Subject, rows: pl.DataFrame) -> State:
    task = subject.make_task()
    task.fit(rows.lazy())
    return task.state()


def _try_to_fit(subject: Subject, rows: pl.DataFrame) -> State | None:
    """Return the state, or None if `fit` rejects the rows, which shows that it read them."""
    try:
        return _fit(subject, rows)
    except Exception:  # user code may raise anything, and no training will have such rows
        return None


def _is_same_state(state: State, first: State) -> bool:
    try:
        return canonical_json(state) == canonical_json(first)
    except (TypeError, ValueError):  # NaN, as the deviation of a single row is
        return False


def _list_leaves(value: JsonValue, path: str = "") -> Mapping[str, JsonValue]:
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else key, child) for key, child in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{index}]", child) for index, child in enumerate(value)]
    else:
        return {path: value}
    return {leaf: found for key, child in items for leaf, found in _list_leaves(child, key).items()}
