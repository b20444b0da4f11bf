"""Comparison of the newest blocks of a stream with the champion's reference and loss."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from perennial.clients.object_store import ObjectStore
from perennial.clients.pyfunc_flavor import CODE_FOLDER
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.monitoring import DriftReport, Reference, WindowDrift
from perennial.contracts.snapshot import Snapshot, as_utc
from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import ValidationReport
from perennial.detect_drift.dependence import dependence_profile, scan_compared
from perennial.detect_drift.file_windows import choose_files, performance_of, record_arrivals
from perennial.detect_drift.performance import (
    MIN_LOSS_BLOCKS,
    LossLimit,
    judge_losses,
    loss_limit,
    sharded_losses,
    window_losses,
)
from perennial.detect_drift.reference import Measured, measure_windows, unjudged_windows
from perennial.detect_drift.report import write_report
from perennial.detect_drift.windows import Chosen, choose_blocks, newest_streak
from perennial.engine.evaluation.processes import WHOLE, Shards
from perennial.engine.evaluation.scoring import blames_machine, scoring_device
from perennial.engine.export import WEIGHTS_FILE, load_model
from perennial.engine.serving.carried_code import carried_modules
from perennial.registry.version_files import ModelVersion, damaged_file, read_artifact


@contextmanager
def scoring(champion: ModelVersion) -> Iterator[None]:
    """Convert exceptions of the champion's code to an error that names the version.

    Raises:
        DamagedModelError: its weights are not those that were exported.
        PerennialError: it cannot be loaded, or cannot score rows.
    """
    try:
        yield
    except DamagedModelError as error:
        raise damaged_file(champion, WEIGHTS_FILE, error) from error
    except PerennialError:
        raise
    except (Exception, SystemExit) as error:  # user code, possibly years old
        if isinstance(error, Exception) and blames_machine(error):
            raise
        first = str(error).splitlines()[0] if str(error) else ""
        raise PerennialError(
            f"{champion.name} version {champion.version} cannot be scored on the new rows",
            evidence=f"{type(error).__name__}: {first}",
            action="check whether the task's code or the data's columns changed since it was "
            f"registered (`perennial explain {champion.name}@{champion.version}` shows its commit)",
        ) from error


def compare_with_champion(
    files: Path,
    champion: ModelVersion,
    *,
    current: Snapshot,
    validated: ValidationReport,
    triggers: TriggersSection,
    store: ObjectStore,
    page: Path,
    shards: Shards = WHOLE,
) -> DriftReport:
    """Judge drift and loss of the data after the champion's snapshot, and write the page."""
    known = read_artifact(Snapshot, champion, files)
    reference = _read_reference(champion, files, known, current)
    by_file = not current.data.time
    if by_file:
        chosen = choose_files(
            reference,
            known,
            validated.blocks,
            current,
            arrivals=record_arrivals(store, champion.name, [known, current]),
            files_in_a_block=triggers.files_in_a_block,
        )
        performance = performance_of(reference.performance, chosen.reference)
        reference = reference.model_copy(update={"performance": performance})
    else:
        chosen = choose_blocks(reference, validated.blocks, current)
    limit = loss_limit(reference.performance, triggers)
    measured = None
    windows: tuple[WindowDrift, ...] = unjudged_windows(chosen.windows)
    rows = scan_compared(current, chosen.reference, chosen.windows) if chosen.windows else None
    if rows is not None and not chosen.reason_to_skip(triggers):
        blocks = (*chosen.reference, *chosen.windows)
        dependence = dependence_profile(rows, current, blocks, len(chosen.reference))
        more = [dependence] if dependence else []
        measured = measure_windows(chosen.reference, chosen.windows, triggers, more)
        windows = measured.windows
    # Also where drift is not judged: the limit of the loss has other minimums.
    if rows is not None:
        # Its own code, as it serves: an edited one would show a decay that users do not see.
        with scoring(champion), carried_modules(files / CODE_FOLDER):
            losses = (
                sharded_losses(files, current, windows, shards)
                if shards.number > 1
                else window_losses(*load_model(files, scoring_device()), rows, current, windows)
            )
        windows = judge_losses(windows, losses, limit, triggers)
    found = conclude(
        champion.version,
        current,
        reference,
        chosen=chosen,
        windows=windows,
        measured=measured,
        limit=limit,
        triggers=triggers,
    )
    write_report(page, found, triggers, measured=measured, reference=reference, limit=limit)
    return found


def _read_reference(
    champion: ModelVersion, files: Path, known: Snapshot, current: Snapshot
) -> Reference:
    """Return the champion's reference, with those of its rows that the data still has."""
    kept = current.rows - current.rows_beyond(known)
    return read_artifact(Reference, champion, files).model_copy(update={"rows": kept})


def conclude(
    champion_version: str,
    current: Snapshot,
    reference: Reference,
    *,
    chosen: Chosen,
    windows: tuple[WindowDrift, ...],
    measured: Measured | None,
    limit: LossLimit | None,
    triggers: TriggersSection,
) -> DriftReport:
    """Return the report of a comparison.

    Drift and decay must persist: the newest `windows_in_a_row` windows must alarm. A stream that
    drifted and returned to the reference needs no retraining. Windows with too few labels neither
    break nor extend a run of decayed ones.
    """
    unjudged = chosen.reason_to_skip(triggers)
    new_time = timedelta(0)
    newest = current.data_time(datetime.now(UTC))
    # Rows whose times the champion's data did not tell may be as old as any.
    known_until = reference.time_max or current.time_min
    if newest is not None and known_until is not None:
        new_time = max(new_time, as_utc(newest) - as_utc(known_until))
    judged = [window.decayed for window in windows if window.loss_z_score is not None]
    notes = [unjudged] if unjudged else []
    notes += [*chosen.notes, *_notes(measured, windows, len(judged), reference, limit)]
    return DriftReport(
        champion_version=champion_version,
        calibration="none" if unjudged else "blocks",
        windows=windows,
        drifted=newest_streak([w.alarmed for w in windows]) >= triggers.windows_in_a_row,
        decayed=newest_streak(judged) >= triggers.windows_in_a_row,
        new_rows=max(0, current.rows - reference.rows),
        new_days=new_time / timedelta(days=1),
        notes=tuple(dict.fromkeys(notes)),
    )


def _notes(
    measured: Measured | None,
    windows: Sequence[WindowDrift],
    num_with_loss: int,
    reference: Reference,
    limit: LossLimit | None,
) -> list[str]:
    if not windows:
        return []
    notes = [*measured.notes] if measured is not None else []
    if limit is None:
        notes.append(
            f"performance was not judged: the champion has {len(reference.performance)} held-out "
            f"blocks; at least {MIN_LOSS_BLOCKS} full ones are needed"
        )
    elif num_with_loss < len(windows):
        notes.append(
            f"{len(windows) - num_with_loss} of {len(windows)} windows have too few labels"
        )
    return notes
