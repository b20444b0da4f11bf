"""Obstacles: what in a contract and its data makes a promotion impossible.

They are known before a training: rows are counted, and stored results read.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perennial.contract import Contract
from perennial.contract_help.power_estimate import count_test_blocks, power_estimate_lines
from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError, OutageError, PerennialError
from perennial.contracts.initial import PretrainedWeights
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import ValidationReport
from perennial.data.dataset import Dataset
from perennial.data.opaque_columns import is_content
from perennial.engine.evaluation.resampling import Blocks
from perennial.reports.text import counted
from perennial.runs import Home
from perennial.snapshot_data.manifest import take_snapshot

FEWEST_SPLIT_ROWS = 16  # of the sanity checks
LARGEST_SHARE, LARGEST_HELD_OUT = 0.4, 0.6  # something must be left to train on
MARGIN = 1.05  # hashes divide rows only nearly evenly
WAIT = "wait for more data"
LEAKAGE = "leakage_auc:"


@dataclass(frozen=True)
class Obstacle:
    """Something that no training can overcome.

    Attributes:
        reason: What stands against what, with both numbers.
        remedies: Lines to write in the contract, of which one is enough, and what else helps.
    """

    reason: str
    remedies: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the description for people."""
        first, *others = self.remedies
        remedies = [f"  write:    {first}", *(f"  or:       {other}" for other in others)]
        return [f"will never be promoted: {self.reason}", *remedies]


def look_ahead(home: Home, contract: Contract) -> tuple[list[str], bool]:
    """Return what is known of the data, for people, and whether anything could be promoted.

    Raises:
        BadDataError: the data cannot be trained on.
        PerennialError: the gate names slices that are not columns, or the initial weights are
            missing, altered or pickled.
    """
    obstacles, lines, is_read = list(obstacles_in_contract(contract)), list[str](), True
    if isinstance(contract.model.initial, PretrainedWeights):
        from perennial.registry.initial import resolve_initial  # noqa: PLC0415 - imports PyTorch

        try:
            resolve_initial(contract.model, home.environment)
        except OutageError as error:
            lines.append(f"not looked at: the initial weights: {error.problem}")
    snapshot: Snapshot | None
    try:
        snapshot = take_snapshot(contract.data, contract.split)
    except PerennialError as error:
        # What the store's client raised, such as an outage or missing credentials, proves nothing
        # about the data; our own findings, such as an unsupported scheme, have no cause.
        is_of_client = error.__cause__ is not None and "://" in contract.data.uri
        if isinstance(error, BadDataError) or not is_of_client:
            raise
        snapshot, is_read = stored_snapshot(home, contract), False
        known = "rows are those of the last run here" if snapshot else "no snapshot is stored here"
        lines.append(f"not looked at: the data, {known}: {error.problem}")
    if snapshot is not None:
        contract.gate.require_slices(snapshot.columns)
        splits = ", ".join(f"{rows:,} {split}" for split, rows in snapshot.split_rows.items())
        features = snapshot.task_columns.features
        partitions = counted(len(snapshot.files), "partition")
        lines.append(f"{partitions}, {counted(snapshot.rows, 'row')}: {splits}")
        lines.append(f"{counted(len(features), 'feature')}: {', '.join(features)}")
        obstacles += obstacles_in_data(contract, snapshot)
        obstacles += obstacles_in_profile(home, contract, snapshot)
    if snapshot is not None and is_read:
        if contract.expectations.suite:
            lines += _suite_lines(contract, snapshot)
        rows, blocks = count_test_blocks(snapshot)  # reads the data, once
        obstacles += obstacles_in_blocks(contract, snapshot, blocks)
        lines += power_estimate_lines(home, contract, rows, blocks)
    return [*lines, *(line for each in obstacles for line in each.lines())], not obstacles


def _suite_lines(contract: Contract, snapshot: Snapshot) -> Iterator[str]:
    from perennial.validate_data.suites.team_suite import (  # noqa: PLC0415 - imports GX
        TeamSuite,
    )

    schema = Dataset(snapshot).schema()
    yield from TeamSuite.prepare(contract.expectations, schema, snapshot.rows).lines()


def obstacles_in_contract(contract: Contract) -> Iterator[Obstacle]:
    """Yield contradictions of options that are no mistake of either alone."""
    training, gate = contract.training, contract.gate
    # The default may be above a small batch, and is then cut to it.
    is_own = "micro_batch_size" in training.model_fields_set
    whole = training.global_batch_size
    if is_own and training.micro_batch_size > whole:
        yield Obstacle(
            f"micro_batch_size = {training.micro_batch_size} is above global_batch_size = {whole}, "
            "which it is a part of: one of them is not what was meant",
            (
                f"micro_batch_size = {whole}  # in [training]",
                f"global_batch_size = {training.micro_batch_size}  # in [training]",
            ),
        )
    if training.simplified:
        yield Obstacle(
            "training.simplified = true leaves out what makes a model good: it is for debugging",
            ("simplified = false  # in [training], once the bug is found",),
        )
    for name, limit in gate.required.items():
        yield from _beyond_its_range(name, limit)


def _beyond_its_range(name: str, limit: float) -> Iterator[Obstacle]:
    """Yield a required value that no model can reach: figures of the catalogue have bounds."""
    from perennial.engine.metrics.catalogue import find_metric  # noqa: PLC0415 - reads no PyTorch

    metric = find_metric(name)
    if metric is None:
        return
    if metric.direction == "maximize" and limit > 1.0:
        share = limit / 100 if limit <= 100.0 else 1.0
        yield Obstacle(
            f"gate.required.{name} = {limit:g}, but {name} is at most 1",
            (f"required = {{ {name} = {share:g} }}  # in [gate]",),
        )
    if metric.direction == "minimize" and limit < 0.0:
        yield Obstacle(
            f"gate.required.{name} = {limit:g}, but {name} is at least 0",
            (f"required = {{ {name} = {-limit:g} }}  # in [gate]",),
        )


def obstacles_in_data(contract: Contract, snapshot: Snapshot) -> Iterator[Obstacle]:
    """Yield limits of the contract that its data cannot meet; only rows are counted."""
    gate, expectations = contract.gate, contract.expectations
    if snapshot.rows < expectations.min_rows:
        yield Obstacle(
            f"the data has {snapshot.rows:,} rows, expectations.min_rows = {expectations.min_rows}",
            (f"min_rows = {snapshot.rows}  # in [expectations]", WAIT),
        )
    for split, rows in snapshot.split_rows.items():
        if rows < FEWEST_SPLIT_ROWS:
            yield Obstacle(
                f"the {split.value} split has {rows} rows, the sanity checks need "
                f"{FEWEST_SPLIT_ROWS}",
                (*_larger_share(snapshot, split, FEWEST_SPLIT_ROWS, rows), WAIT),
            )
    test_rows = snapshot.split_rows[Split.TEST]
    if FEWEST_SPLIT_ROWS <= test_rows < gate.min_test_rows:
        larger = _larger_share(snapshot, Split.TEST, gate.min_test_rows, test_rows)
        yield Obstacle(
            f"{test_rows:,} test rows, gate.min_test_rows = {gate.min_test_rows}",
            (*larger, f"min_test_rows = {test_rows}  # in [gate]", WAIT),
        )


def obstacles_in_blocks(
    contract: Contract, snapshot: Snapshot, blocks: Blocks
) -> Iterator[Obstacle]:
    """Yield a test split of too few independent blocks."""
    least = contract.gate.min_test_blocks
    if blocks.count < least:
        yield Obstacle(
            f"{counted(blocks.count, f'independent test {blocks.unit}')}, "
            f"gate.min_test_blocks = {least}",
            (*_larger_share(snapshot, Split.TEST, least, blocks.count), WAIT),
        )


def obstacles_in_profile(home: Home, contract: Contract, snapshot: Snapshot) -> Iterator[Obstacle]:
    """Yield limits on leakage that the data did not meet when this machine last validated it."""
    found = _newest(
        home, contract.model.name, "validate_data-*/validation", ValidationReport.file_name
    )
    if found is None:
        return
    report = ValidationReport.read(found)
    expectations, features = contract.expectations, snapshot.task_columns.features
    aucs = {
        name.removeprefix(LEAKAGE): float(value)
        for name, value in report.facts.items()
        if name.startswith(LEAKAGE) and isinstance(value, int | float)
    }

    def leak(name: str) -> float:
        of_content = name not in features and is_content(name)
        return expectations.leakage_limits(report.facts, is_content=of_content)[1]

    leaks = {
        name: auc
        for name, auc in aucs.items()
        if auc > leak(name)
        and name.partition(".")[0] in features
        and name not in expectations.leakage_allow
    }
    if leaks:
        shown = ", ".join(f"{name} {auc:.3f}" for name, auc in leaks.items())
        allowed = json.dumps([*expectations.leakage_allow, *leaks])
        dropped = json.dumps([*contract.data.meta, *(each for each in leaks if each in features)])
        yield Obstacle(
            f"when it was last validated, features predicted the label alone ({shown}), "
            f"expectations.leakage_auc_fail = {expectations.leakage_auc_fail:g}",
            (
                f"meta = {dropped}  # in [data]: the model then does not see them",
                f"leakage_allow = {allowed}  # in [expectations], if you know why they may",
            ),
        )


def stored_snapshot(home: Home, contract: Contract) -> Snapshot | None:
    """Return the newest snapshot of the contract's data in a home; None if it has other options."""
    found = _newest(home, contract.model.name, "snapshot_data-*/snapshot", Snapshot.file_name)
    snapshot = Snapshot.read(found) if found else None
    is_same = snapshot is not None and (snapshot.data, snapshot.split) == (
        contract.data,
        contract.split,
    )
    return snapshot if is_same else None


def _newest(home: Home, model: str, pattern: str, file: str) -> Path | None:
    folders = [
        folder
        for run in home.runs()
        if run.model == model
        for folder in (home.folder(run.run_id) / "steps").glob(pattern)
        if (folder / file).is_file()
    ]
    return max(folders, key=lambda folder: (folder / file).stat().st_mtime, default=None)


def _larger_share(snapshot: Snapshot, split: Split, wanted: int, found: int) -> Iterator[str]:
    """Yield the line with the share of rows with which a split is large enough, if one is."""
    # The training split is what the other two leave.
    if split is Split.TRAIN or not found:
        return
    now = getattr(snapshot.split, f"{split.value}_fraction")
    other = "test" if split is Split.VALIDATION else "validation"
    rest = getattr(snapshot.split, f"{other}_fraction")
    share = math.ceil(now * wanted / found * MARGIN * 100) / 100
    if share <= LARGEST_SHARE and share + rest <= LARGEST_HELD_OUT:
        yield f"{split.value}_fraction = {share:g}  # in [split]"
