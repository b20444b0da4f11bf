"""Change the champion by hand, with a reason: promote a version, or roll the champion back."""

import getpass
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.tracking import open_tracking
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.contracts.lineage import CONTRACT_FILE
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.version_decisions import (
    REASON_CHARACTERS,
    REPLACED_TAG,
    VersionDecision,
    refuse_rolled_back,
    tags_of_promotion,
    tags_of_rollback,
)
from perennial.engine.export import load_model
from perennial.gate.config import JudgementConfig
from perennial.gate.judgement import judge_challenger
from perennial.registry.champion_records import ChampionMovedError
from perennial.registry.model_registry import CHAMPION
from perennial.registry.promotion import promote_while_better
from perennial.registry.version_files import ModelVersion
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
    return JudgementConfig(model=contract.model, gate=contract.gate)


ANYWAY = "--force skips this check"


def _decide(reason: str, *, force: bool) -> VersionDecision:
    """Return the decision of this person that is recorded.

    Raises:
        PerennialError: the reason is empty or too long for a tag.
    """
    reason = reason.strip()
    if not reason or len(reason) > REASON_CHARACTERS:
        raise PerennialError(
            f"--reason needs 1 to {REASON_CHARACTERS:,} characters",
            evidence=f"it has {len(reason):,}",
            action="write the reason in a sentence, for later readers",
        )
    return VersionDecision.now(getpass.getuser(), f"{reason}{' (forced)' if force else ''}")


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
    _finish_change(catalogue, name)
    version = catalogue.find(f"{name}@{number}")
    records = catalogue.registry.champion_records(name)
    champion = records.alias if force else records.champion()
    if champion == version.version and not records.problem():
        return f"{name} version {champion} is champion already"
    if force:
        tags = tags_of_promotion(version.version, records.replaced(), decision)
        _move(catalogue, version, champion, tags, forced=True)
        return f"{name} version {version.version} is champion{_instead_of(champion)} (forced)"
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
        replaced = catalogue.registry.champion_records(version.name).replaced()
        tags = tags_of_promotion(version.version, replaced, decision)
        expected = verdict.champion_version
        catalogue.registry.promote(version.name, version.version, expected, tags)
        return verdict

    recorded = catalogue.version_record(version).verdict
    if recorded is not None and recorded.champion_version != champion:
        recorded = None
    verdict, promoted = promote_while_better(recorded or judge(), promote_over, judge)
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


def rollback(catalogue: Catalogue, name: str, reason: str, *, force: bool) -> str:
    """Make the version that the champion replaced champion again; returns what was done.

    Nothing is measured again, since a rollback is an emergency; but without force, the earlier
    version must load, and must not have been rolled back itself.

    Raises:
        PerennialError: the model has no champion or no earlier one, or that is not fit to serve.
        ChampionMovedError: another version became champion meanwhile.
    """
    decision = _decide(reason, force=force)
    _finish_change(catalogue, name)
    champion = catalogue.find(f"{name}@{CHAMPION}")
    earlier = champion.tags.get(REPLACED_TAG) or champion.tags.get("perennial.parent_version", "")
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
    tags = tags_of_rollback(champion.version, target.version, decision)
    _move(catalogue, target, champion.version, tags)
    return f"{name} version {target.version} is champion again{_instead_of(champion.version)}"


def _finish_change(catalogue: Catalogue, name: str) -> None:
    """Complete an announced alias change that was killed; the decision starts from it."""
    catalogue.versions(name)  # an unknown name is refused before anything is touched
    catalogue.registry.finish_change(name)


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
    with TemporaryDirectory() as scratch:
        load_model(catalogue.registry.download(version, Path(scratch)))


def _instead_of(champion: str) -> str:
    return f" in place of version {champion}" if champion else ", the first one"
