"""Champion and anchor: score them on the challenger's test rows and note what is unfair.

Fourteen challengers, each promoted as not worse by more than 0.005, made a champion 0.06 worse than
the first. So a challenger is compared with the champion that they all descend from as well.
"""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np

from perennial.contracts.data import Split
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.gate import AnchorComparison, Serving, Verdict
from perennial.contracts.snapshot import Snapshot, as_utc
from perennial.contracts.training import Challenger
from perennial.contracts.version_decisions import GATE, REPLACED_TAG, VersionDecision
from perennial.data.dataset import Dataset, count_seen_rows
from perennial.data.partitions import lost_line
from perennial.engine.evaluation.processes import WHOLE, Shards
from perennial.engine.evaluation.scoring import blames_machine
from perennial.engine.export import WEIGHTS_FILE
from perennial.engine.metrics.arrays import all_finite
from perennial.gate.champion_code import ChampionCode
from perennial.gate.comparison import Contender, Match, compare, find_undefined
from perennial.gate.scoring import score_exported
from perennial.gate.serving import model_megabytes
from perennial.registry.model_registry import ModelRegistry
from perennial.registry.version_files import ModelVersion, damaged_file, read_artifact

# A model timed against its own copy: the bound was 0.90 to 1.05 in 10 pairs of processes on an idle
# machine, and below 1.00 in 40 of 40 on a busy one: two processes of one model differ themselves.
ALIKE = 0.1


@dataclass(frozen=True)
class Champion:
    """The current champion.

    Attributes:
        contender: None without a champion, or if it cannot be scored.
        notes: Limits of the comparison, for people.
        outdated: Whether its data end before the challenger's.
        megabytes: Size of its weights and preprocessing.
        anchor: The last champion that was shown to be better than the one before it, if that is an
            older version: the challenger may not be worse than it either.
    """

    version: str = ""
    contender: Contender | None = None
    failure: str = ""
    weights_sha256: str = ""
    notes: tuple[str, ...] = ()
    outdated: bool = False
    megabytes: float = 0.0
    folder: Path | None = None
    anchor: "Champion | None" = None

    def gains(self, serving: Serving | None) -> dict[str, bool]:
        """Return, for each property other than metrics, whether the challenger is better."""
        size = serving.model_megabytes if serving is not None else None
        smaller = size is not None and size < self.megabytes
        times = serving.times_as_fast if serving is not None else None
        faster = times is not None and times > 1.0 + ALIKE
        return {"fresher": self.outdated, "smaller": smaller, "faster": faster}


def read_champion(
    folder: Path,
    registered: ModelVersion,
    dataset: Dataset,
    challenger: Contender,
    *,
    processes: int | None = None,
    shards: Shards = WHOLE,
) -> Champion:
    """Load and score a downloaded champion, in so many processes or shards.

    Raises:
        DamagedModelError: its files are not those that were exported.
    """
    version = registered.version
    record = read_artifact(Challenger, registered, folder)
    then_snapshot = read_artifact(Snapshot, registered, folder)
    score = partial(
        score_exported, folder, dataset, {Split.TEST: ()}, processes=processes, shards=shards
    )
    code = ChampionCode.of(folder, record)
    try:
        contender = code.score(score, challenger)
        code_notes = code.verify(contender, version, is_whole=shards.number == 1)
    except DamagedModelError as error:
        raise damaged_file(registered, WEIGHTS_FILE, error) from error
    # `SystemExit` as well: task code that calls `sys.exit()` must not end the step.
    except (Exception, SystemExit) as error:  # user code, possibly years old
        # Memory that ran out is not the model's fault: the champion must not count as unscorable.
        if isinstance(error, Exception) and blames_machine(error):
            raise
        first = str(error).splitlines()[0] if str(error) else ""
        return Champion(version=version, failure=f"{type(error).__name__}: {first}")
    weights, scored = record.weights_sha256, contender.scored
    notes = (*code_notes, *_notes(version, record, then_snapshot, dataset))
    differs = not np.array_equal(scored.labels, challenger.scored.labels)
    if differs and contender.task.kind == "statistic":
        # Whether a metric is comparable nevertheless is decided metric by metric.
        notes = (*notes, f"version {version} weighs the rows differently")
    elif differs:
        failure = "it encodes the labels differently: the label's values changed"
        return Champion(version, None, failure, weights, notes)
    if not (all_finite(scored.predictions) and all_finite(scored.losses)):
        return Champion(version, None, "its predictions are not finite", weights, notes)
    now, then = dataset.snapshot.time_max, then_snapshot.time_max
    return Champion(
        version,
        contender,
        "",
        weights,
        notes,
        outdated=now is not None and then is not None and as_utc(then) < as_utc(now),
        megabytes=model_megabytes(folder),
        folder=folder,
    )


def _notes(version: str, record: Challenger, then: Snapshot, dataset: Dataset) -> tuple[str, ...]:
    now = dataset.snapshot
    notes = []
    if record.columns != now.task_columns:
        gone = sorted(set(record.columns.features) - set(now.task_columns.features))
        new = sorted(set(now.task_columns.features) - set(record.columns.features))
        changed = [f"without {', '.join(new)}"] * bool(new) + [f"with {', '.join(gone)}"] * bool(
            gone
        )
        how = " and ".join(changed) or "with other column types"
        notes.append(f"version {version} was trained {how}")
    if lost := lost_line(now, then):
        notes.append(f"since version {version} was trained, {lost}: the dataset is append-only")
    if not then.splits_as(now):
        notes.append(_overlap_note(version, then, dataset))
    return tuple(notes)


def _overlap_note(version: str, then: Snapshot, dataset: Dataset) -> str:
    """Say how many of the current test rows the champion was trained or selected on."""
    count = count_seen_rows(dataset, then)
    if count is None:
        return (
            f"the split rule changed since version {version} was trained and cannot be applied to "
            "this data: it may have been trained on test rows"
        )
    if not count:
        return (
            f"the split rule changed since version {version} was trained; it was trained on none "
            "of the test rows"
        )
    return (
        f"the split rule changed since version {version} was trained: {count:,} of the test rows "
        "were training or validation rows then, which biases the comparison towards the champion"
    )


def compare_with_anchor(
    match: Match, anchor: Champion | None, metric: str
) -> AnchorComparison | None:
    """Compare the challenger with the anchor on the same rows; None if the champion is it."""
    if anchor is None:
        return None
    failure, comparison = anchor.failure, None
    if anchor.contender is not None:
        rivals = replace(match, champion=anchor.contender, decisive=None)
        failure = find_undefined(rivals, [metric]).get(metric, "")
        if not failure:
            comparison = compare(rivals, (metric,))[0]
            failure = comparison.incomparable
    return AnchorComparison(version=anchor.version, comparison=comparison, failure=failure)


def find_anchor(
    registry: ModelRegistry, champion: ModelVersion, days: int
) -> tuple[str, ModelVersion | None] | None:
    """Return the anchor's number and version, None if deleted; None if it is the champion itself.

    Follows the chain of replaced versions back from the champion, as long as the gate promoted each
    without showing that it is better. A version that a person promoted starts a new chain.
    """
    oldest = datetime.now(UTC) - timedelta(days=days)
    known = {version.version: version for version in registry.versions(champion.name)}
    current, seen = champion, {champion.version}
    while not _begins_record(registry, current):
        number = current.tags.get(REPLACED_TAG, "")
        # A version that is promoted a second time may have replaced its successor: a circle.
        if not number or number in seen:
            break
        before = known.get(number)
        if before is None:
            return number, None
        if before.created_at < oldest:
            break
        seen.add(number)
        current = before
    return None if current is champion else (current.version, current)


def _begins_record(registry: ModelRegistry, version: ModelVersion) -> bool:
    """Whether the chain of comparisons starts at this version."""
    promoted = VersionDecision.of(version.tags, "promoted")
    if promoted is None or promoted.by != GATE:
        return True
    try:
        files = registry.read_files(version, {Verdict.file_name})
        verdict = Verdict.from_json(files[Verdict.file_name])
    except (PerennialError, KeyError, ValueError):  # of another version: nothing was shown
        return False
    # If the champion moved after the registration, no file has the verdict that promoted it.
    if verdict.champion_version != version.tags.get(REPLACED_TAG, ""):
        return False
    found = verdict.comparisons[0].improvement if verdict.comparisons else None
    return not verdict.champion_version or (found is not None and found.low > 0)
