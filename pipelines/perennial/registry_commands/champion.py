"""Change the champion by hand: promote a version, roll it back, or repair its two records."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_tracking
from perennial.contract import Contract
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.gate import Verdict
from perennial.contracts.lineage import CONTRACT_FILE
from perennial.contracts.section import Section
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.version_decisions import (
    REASON_CHARACTERS,
    REPLACED_TAG,
    VersionDecision,
    is_rolled_back,
    refuse_rolled_back,
    refuse_unrecordable,
    tags_of_promotion,
    tags_of_rollback,
    this_person,
)
from perennial.engine.export import load_model
from perennial.gate.config import JudgementConfig
from perennial.gate.judgement import judge_challenger
from perennial.registry.champion_records import CHAMPION, ChampionMovedError, ChampionRecords
from perennial.registry.promotion import promote_while_better
from perennial.registry.version_files import FILES_TAG, ModelVersion, rename_back
from perennial.registry_commands.catalogue import Catalogue


def re_evaluate(catalogue: Catalogue, version: ModelVersion) -> Verdict:
    """Return the gate's verdict on a version and the current champion, on the version's test rows.

    The rules are those of the contract that the version was trained under. A tracking run of its
    own holds the figures.

    Raises:
        PerennialError: the version has no contract, or its data cannot be read any more.
    """
    with TemporaryDirectory() as scratch:
        folder = catalogue.registry.download(version, Path(scratch))
        config = _gate(version, folder)
        now = datetime.now(UTC)
        run = f"{version.name}-{version.version}-judged-again-{now:%Y%m%d-%H%M%S-%f}"
        environment = replace(catalogue.environment, run_id=run)
        page = Path(scratch) / "report.html"
        verdict = judge_challenger(
            config, folder, folder, folder, page=page, environment=environment
        )
        # In a pipeline the run goes on after a promotion; this one has no further step.
        open_tracking(environment, version.name).finish()
        return verdict


def _gate(version: ModelVersion, folder: Path) -> JudgementConfig:
    lacking = [
        name for name in (CONTRACT_FILE, SkeletonReport.file_name) if not (folder / name).exists()
    ]
    try:
        contract = None if lacking else Contract.from_json((folder / CONTRACT_FILE).read_bytes())
    except ValueError:
        contract, lacking = None, ["a contract that this code can read"]
    if contract is None:
        raise PerennialError(
            f"{version.name} version {version.version} cannot be judged by the gate",
            evidence=f"it lacks {' and '.join(lacking)}: it was registered by another version of "
            "Perennial",
            action="train it again; --force promotes it unjudged",
        )
    return JudgementConfig(model=contract.model, gate=contract.gate, scoring=contract.scoring)


ANYWAY = "--force skips this check"
LOAD_AS_SERVED = "import sys, mlflow.pyfunc; mlflow.pyfunc.load_model(sys.argv[1])"


def _decide(reason: str, *, force: bool) -> VersionDecision:
    """Return the decision of this person that is recorded.

    Raises:
        PerennialError: the reason is empty, too long for a tag, or holds a character that the
            records cannot keep.
    """
    reason = reason.strip()
    refuse_unrecordable("--reason", [reason])
    if not reason or len(reason) > REASON_CHARACTERS:
        raise PerennialError(
            f"--reason needs 1 to {REASON_CHARACTERS:,} characters",
            evidence=f"it has {len(reason):,}",
            action="write the reason in a sentence, for later readers",
        )
    return VersionDecision.now(this_person(), f"{reason}{' (forced)' if force else ''}")


def promote(catalogue: Catalogue, name: str, number: str, reason: str, *, force: bool) -> str:
    """Make a version champion; returns what was done.

    Without force, the version must be whole, no person may have rolled it back, and the gate must
    have found it better than the present champion: its verdict counts if it was compared with that
    one, else both are judged again on the version's own test rows. A champion that moves meanwhile
    is compared with in turn.

    Raises:
        PerennialError: no such version, or it would make things worse.
        ChampionMovedError: another version became champion meanwhile, and force was not meant for
            that one.
    """
    decision = _decide(reason, force=force)
    _finish_change(catalogue, name, number)
    version = catalogue.find(f"{name}@{number}")
    decision = decision.after(version.tags)
    records = catalogue.registry.champion_records(name)
    # `champion()` refuses records that contradict each other; --force decides in spite of that.
    champion = records.alias if force else records.champion()
    if champion == version.version and not records.problem():
        return f"{name} version {champion} is champion already"
    if force:
        replaced, how = records.replaced(), _instead_of(records.replaced())
        if replaced == version.version:
            # It replaced another one, to which a rollback leads; not itself.
            replaced, how = version.tags.get(REPLACED_TAG, ""), " again"
        tags = tags_of_promotion(version.version, replaced, decision)
        _move(catalogue, version, champion, tags, forced=True)
        return f"{name} version {version.version} is champion{how} (forced)"
    return _promote_if_better(catalogue, version, champion, decision)


def _promote_if_better(
    catalogue: Catalogue, version: ModelVersion, champion: str, decision: VersionDecision
) -> str:
    title = f"{version.name} version {version.version}"
    _refuse_rolled_back(version)
    _refuse_damaged(catalogue, version)

    def judge() -> Verdict:
        return re_evaluate(catalogue, version)

    def promote_over(verdict: Verdict) -> Verdict:
        records = catalogue.registry.champion_records(version.name)
        # Judging takes minutes, in which people may have decided on this version, too.
        own = records.versions.get(version.version, version)
        _refuse_rolled_back(own)
        at_last = VersionDecision.now(decision.by, decision.reason).after(own.tags)
        tags = tags_of_promotion(version.version, records.replaced(), at_last)
        expected = verdict.champion_version
        catalogue.registry.promote(version.name, version.version, expected, tags)
        return verdict

    recorded = catalogue.version_record(version).verdict
    if recorded is not None and recorded.champion_version != champion:
        recorded = None
    verdict, promoted = promote_while_better(
        recorded or judge(),
        promote_over,
        judge,
        partial(catalogue.registry.has_champion, version.name),
    )
    if promoted is not None:
        grounds = f"judged again: {verdict.summary}"
        if verdict is recorded:
            grounds = "the gate's verdict on it is valid"
        return f"{title} is champion{_instead_of(verdict.champion_version)} ({grounds})"
    if catalogue.registry.champion_records(version.name).champion() == version.version:
        return f"{title} is champion already"
    raise PerennialError(
        f"{title} is not shown to be better",
        evidence=verdict.summary,
        action=f"keep the champion, or train a better one; {ANYWAY}",
    )


def rollback(catalogue: Catalogue, place: str, reason: str, *, force: bool) -> str:
    """Make the version that the champion replaced champion again; returns what was done.

    A version in the place, as in `MODEL@2`, must be the champion.

    Nothing is measured again, since a rollback is an emergency; but without force, the earlier
    version must load, and must not have been rolled back itself.

    Raises:
        PerennialError: the model has no champion or no earlier one, or that is not fit to serve.
        ChampionMovedError: another version became champion meanwhile.
    """
    decision = _decide(reason, force=force)
    name, _, wanted = place.partition("@")
    _finish_change(catalogue, name, wanted)
    champion = catalogue.find(f"{name}@{CHAMPION}")
    if wanted and catalogue.find(place).version != champion.version:
        raise PerennialError(
            f"{name} version {wanted} is not in production, so nothing was rolled back",
            evidence=f"the champion is version {champion.version}",
            action=f"`perennial rollback {name}` takes out the champion",
        )
    named = (champion.tags.get(tag, "") for tag in (REPLACED_TAG, "perennial.parent_version"))
    # Earlier versions of this code recorded one that was set again by force as its own predecessor.
    earlier = next((each for each in named if each not in ("", champion.version)), "")
    found = [version for version in catalogue.versions(name) if version.version == earlier]
    if not found:
        raise PerennialError(
            f"{name} has nothing to go back to",
            evidence=f"version {champion.version} replaced version {earlier}, which is gone"
            if earlier
            else f"version {champion.version} was the first, or what it replaced is not recorded",
            action=f"`perennial promote {name} VERSION` names one",
        )
    (target,) = found
    if not force:
        _refuse_rolled_back(target)
        _refuse_damaged(catalogue, target)
    decision = decision.after(champion.tags, target.tags)
    tags = tags_of_rollback(champion.version, target.version, decision)
    _move(catalogue, target, champion.version, tags)
    return f"{name} version {target.version} is champion again{_instead_of(champion.version)}"


def _finish_change(catalogue: Catalogue, name: str, number: str) -> None:
    """Complete an announced change of the champion that was killed or failed.

    Raises:
        ChampionMovedError: that moved the champion to another version than the one that the
            decision names: whoever decided has not seen it.
    """
    catalogue.versions(name)  # an unknown name is refused before anything is touched
    if not catalogue.registry.finish_change(name):
        return
    champion = catalogue.registry.champion_records(name).alias
    if champion != number:
        raise ChampionMovedError(
            f"version {champion} of {name} became champion just now; nothing else was changed",
            evidence="it had been announced, but its promotion was not completed, and is now",
            action=f"look at `perennial models {name}`, then decide again",
        )


def _move(
    catalogue: Catalogue,
    version: ModelVersion,
    champion: str,
    tags: dict[str, dict[str, str]],
    *,
    forced: bool = False,
) -> None:
    try:
        catalogue.registry.promote(version.name, version.version, champion, tags, forced=forced)
    except ChampionMovedError as error:
        raise ChampionMovedError(
            f"the champion of {version.name} moved meanwhile; nothing was changed",
            evidence=f"it was {f'version {champion}' if champion else 'none'} a moment ago",
            action=f"look at `perennial models {version.name}`, then decide again",
        ) from error


def _refuse_rolled_back(version: ModelVersion) -> None:
    title = f"{version.name} version {version.version}"
    refuse_rolled_back(title, version.tags, f"name another version; {ANYWAY}")


def _refuse_damaged(catalogue: Catalogue, version: ModelVersion) -> None:
    """Refuse a version that neither the present code loads nor, as it is served, its own."""
    with TemporaryDirectory() as scratch:
        folder = catalogue.registry.download(version, Path(scratch))
        try:
            load_model(folder)
        except DamagedModelError:
            raise
        except Exception as error:  # the task may have been renamed since, or lie elsewhere
            served = subprocess.run(
                [sys.executable, "-I", "-c", LOAD_AS_SERVED, str(folder)],
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                stdin=subprocess.DEVNULL,
            )
            if served.returncode == 0:
                return
            last = (served.stderr.strip().splitlines() or [f"exit code {served.returncode}"])[-1]
            first = str(error).partition("\n")[0]
            raise PerennialError(
                f"{version.name} version {version.version} cannot be loaded",
                evidence=f"by the present code: {first}; by the code that it carries: {last}",
                action=f"--code names the folder of its task's code; {ANYWAY}",
            ) from error


def _instead_of(champion: str) -> str:
    return f" in place of version {champion}" if champion else ", the first one"


class RepairEntry(Section):
    """One repair; stored in the object store as `registry/<model>/repaired-<moment>.json`."""

    at: str
    by: str
    problem: str
    before: tuple[str, ...]
    """Both records, as people read them."""
    champion: str
    """The version that both records name since; empty if both forgot the champion."""
    kept: str
    """Key of the object store's replaced record; empty if there was none."""


def repair(
    catalogue: Catalogue, name: str, confirm: Callable[[str], bool], show: Callable[[str], None]
) -> str:
    """Show both records of a champion, propose a repair and carry it out if it is confirmed.

    Returns:
        What was done, in a sentence.

    Raises:
        PerennialError: nothing is known of such a model.
    """
    catalogue.home.require_its_place(name)
    records = catalogue.registry.champion_records(name)
    if not records.versions and not records.problem():
        catalogue.versions(name)  # explains which models there are
    for line in records.lines():
        show(line)
    problem = records.problem()
    if records.pending() and not problem:
        return _complete(catalogue, records, confirm, show)
    if not problem:
        return f"the records of {name} agree: nothing to repair"
    show(f"problem: {problem}")
    if records.renamed:
        show(f"proposal: {rename_back(*records.renamed)}")
        return "nothing was changed"
    number, passed_over = _propose(catalogue, records)
    for line in passed_over:
        show(f"not proposed: {line}")
    show(f"proposal: {_proposal(number)}")
    if not confirm("repair the records so?"):
        return "nothing was changed"
    # Others may have moved the champion while the person read the proposal.
    if catalogue.registry.champion_records(name) != records:
        raise PerennialError(
            f"the records of {name} changed during the repair; nothing was changed",
            action=f"run `perennial models {name} --repair` again",
        )
    return _carry_out(catalogue, records, number)


def _complete(
    catalogue: Catalogue,
    records: ChampionRecords,
    confirm: Callable[[str], bool],
    show: Callable[[str], None],
) -> str:
    show(f"problem: {records.pending()}")
    show(
        "to have another champion, complete it, then "
        f"`perennial promote {records.name} N --force --reason …`"
    )
    if not confirm("complete it now?"):
        return "nothing was changed"
    catalogue.registry.finish_change(records.name)
    now = catalogue.registry.champion_records(records.name)
    return f"{records.name} version {now.alias} is champion"


def _propose(catalogue: Catalogue, records: ChampionRecords) -> tuple[str, list[str]]:
    """Return the number of the champion to restore, and why others are not proposed.

    The first version, by how sure its claim is, whose files are those that were registered; empty
    if none is: then both records forget the champion.
    """
    passed_over = []
    for number in _candidates(records):
        version = records.versions[number]
        if is_rolled_back(version.tags):
            passed_over.append(f"version {number} was taken out of production by a person")
            continue
        try:
            with TemporaryDirectory() as scratch:
                catalogue.registry.download(records.as_promoted(version), Path(scratch))
        except PerennialError as error:
            passed_over.append(f"version {number}: {error.problem}")
            continue
        return number, passed_over
    return "", passed_over


def _candidates(records: ChampionRecords) -> Iterator[str]:
    """Yield the alias, the version in the store's record, what it replaced, earlier champions."""
    change = records.change
    recorded = (change.champion, change.replaced) if change else ()
    for number in dict.fromkeys((records.alias, *recorded, *records.promoted_versions())):
        if number in records.versions:
            yield number


def _carry_out(catalogue: Catalogue, records: ChampionRecords, number: str) -> str:
    name, now = records.name, datetime.now(UTC)
    decision = VersionDecision.now(this_person(), f"repair of the records: {records.problem()}")
    tags = {}
    if number:
        version = records.as_promoted(records.versions[number])
        kept_tags = {
            tag: version.tags[tag] for tag in (REPLACED_TAG, FILES_TAG) if tag in version.tags
        }
        tags[number] = {**decision.after(version.tags).as_tags("restored"), **kept_tags}
    kept = catalogue.registry.repair(name, number, tags)
    entry = RepairEntry(
        at=decision.at,
        by=decision.by,
        problem=records.problem(),
        before=tuple(records.lines()),
        champion=number,
        kept=kept,
    )
    store = open_store(catalogue.home.store_uri)
    key = f"registry/{name}/repaired-{now:%Y%m%dT%H%M%S.%f}.json"
    store.write(key, entry.to_json().encode())
    done = f"{name} version {number} is champion" if number else f"{name} has no champion now"
    aside = f"; the replaced record is kept in {kept}" if kept else ""
    return f"{done}; logged in {store.uri}/{key}{aside}"


def _proposal(number: str) -> str:
    if number:
        return f"set alias and promotion record to version {number}; the current record is kept"
    return (
        "forget the champion, since no version that was champion is left whole: the next "
        "challenger that passes the other conditions of the gate is promoted without a "
        "comparison. The present record is kept aside"
    )
