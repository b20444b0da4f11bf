"""Promotion: package a challenger and make it the champion, in stages that survive a crash."""

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from pydantic import JsonValue

from perennial.clients.object_store import copy_tree, file_digests
from perennial.clients.tracking import TRIGGER_TAG, Tracking, open_tracking
from perennial.contracts.adapter import FULL_BITS
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Alias, Registration, Verdict
from perennial.contracts.initial_model import Origin
from perennial.contracts.lineage import CONTRACT_FILE, DIFF_FILE, LINEAGE_FILE, Lineage
from perennial.contracts.monitoring import Reference
from perennial.contracts.section import digest_of
from perennial.contracts.training import TrainingResult
from perennial.contracts.version_decisions import (
    DESCRIPTION_CHARACTERS,
    GATE,
    VersionDecision,
    refuse_rolled_back,
    tags_of_promotion,
)
from perennial.engine.export import weight_files
from perennial.registry.champion_records import CHAMPION, ChampionMovedError
from perennial.registry.model_card import (
    CARD_FILE,
    CardContent,
    default_description,
    model_card,
    trigger_name,
)
from perennial.registry.model_registry import CHALLENGER, ModelRegistry
from perennial.registry.version_files import ModelVersion
from perennial.steps.stored_steps import StoredRun

Promoted = TypeVar("Promoted")
logger = logging.getLogger(__name__)
BASE_TAG = "perennial.base"
"""Tag of a version that is an adapter: the beginning of the SHA-256 of each file of its base."""
BASE_BITS_TAG = "perennial.base_bits"
"""Tag of a version whose base is quantized: to how many bits. It predicts otherwise without."""
# In tags that people read; the lineage holds the whole.
DIGEST_CHARACTERS = 12
# Packages that compute or read the numbers; another version may give another model.
PACKAGES = (
    "torch",
    "numpy",
    "polars",
    "pyarrow",
    "scikit-learn",
    "scipy",
    "safetensors",
    "peft",
    "pillow",
    "tokenizers",
    "torchao",
    "transformers",
    "kfp",
)


def promote_while_better(
    verdict: Verdict,
    promote: Callable[[Verdict], Promoted],
    judge: Callable[[], Verdict],
    has_champion: Callable[[str], bool],
) -> tuple[Verdict, Promoted | None]:
    """Promote if the verdict favours it; judge again whenever the champion changed meanwhile.

    This terminates: each further round needs another writer's decision.

    Returns:
        The last verdict, and what `promote` returned; None if that verdict rejects.
    """
    while True:
        try:
            if verdict.promote:
                return verdict, promote(verdict)
            if has_champion(verdict.champion_version):
                return verdict, None
            logger.warning("comparing again, because the champion changed meanwhile")
        except ChampionMovedError as error:
            logger.warning("comparing again, because %s", error)
        verdict = judge()


@dataclass(frozen=True)
class Candidate:
    """A packaged model on its way to become champion.

    Attributes:
        package: Folder with every file of the version.
        fingerprint: Identifies the version, so that a retry finds it again.
        summary: Why it was promoted; the version's description.
        champion: The version it was compared with; empty for none.
        default_description: The model's description where nobody wrote one.
    """

    name: str
    description: str
    package: Path
    fingerprint: str
    version_tags: Mapping[str, str]
    model_tags: Mapping[str, str]
    summary: str
    champion: str
    default_description: str = ""


def open_run(environment: Environment, name: str, trigger: str) -> Tracking:
    """Open the MLflow run of this pipeline run, and tag it with what started it.

    Raises:
        PerennialError: the trigger is not a JSON object.
    """
    tracking = open_tracking(environment, name)
    started_by = _read_trigger(environment, trigger).get("trigger", "unknown")
    tracking.set_tags({TRIGGER_TAG: str(started_by)})
    return tracking


def _read_trigger(environment: Environment, trigger: str) -> dict[str, JsonValue]:
    stored = StoredRun(environment.store_uri, environment.run_id)
    return _object("trigger", stored.claim_trigger(trigger))


def trace_lineage(
    environment: Environment,
    *,
    contract: str,
    trigger: str,
    snapshot_digest: str,
    tracking_run_id: str,
    parent_version: str,
    trained: TrainingResult | None = None,
    members: tuple[Origin, ...] = (),
) -> Lineage:
    """Return the model's lineage.

    Raises:
        PerennialError: contract or trigger is not a JSON object, or the contract has no seed.
    """
    training = _object("contract", contract).get("training")
    seed = training.get("seed") if isinstance(training, dict) else None
    if not isinstance(seed, int):
        raise PerennialError(
            "the contract has no training.seed",
            evidence=f"it begins {contract[:60]!r}",
            action="start the run through `perennial run`, which passes the resolved contract",
        )
    registry = _object("contract", contract).get("registry")
    study = registry.get("study") if isinstance(registry, dict) else None
    diff = uncommitted(environment)
    return Lineage(
        contract_digest=hashlib.sha256(contract.encode()).hexdigest(),
        snapshot_digest=snapshot_digest,
        code_digest=environment.code_digest,
        commit=environment.commit,
        code_place=environment.code_place,
        diff_digest=hashlib.sha256(diff).hexdigest() if diff else "",
        image_digest=environment.image_digest,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        packages={name: found for name in PACKAGES if (found := _installed(name))},
        seed=seed,
        parts=trained.parts if trained else (),
        initial=trained.initial.origin if trained and trained.initial else None,
        adapter=trained.adapter if trained else None,
        teachers=trained.teachers.origins if trained and trained.teachers else (),
        members=members,
        run_id=environment.run_id,
        tracking_run_id=tracking_run_id,
        trigger=_read_trigger(environment, trigger),
        parent_version=parent_version,
        study=study if isinstance(study, dict) else {},
    )


def uncommitted(environment: Environment) -> bytes:
    """Return the working tree's uncommitted changes from the run's folder; empty without any."""
    kept = environment.run_folder / DIFF_FILE if environment.run_folder else None
    return kept.read_bytes() if kept is not None and kept.is_file() else b""


def write_package(
    folder: Path,
    content: CardContent,
    *,
    challenger: Path,
    contract: str,
    diff: bytes,
    tags: Mapping[str, str],
) -> Candidate:
    """Write all files needed to score raw rows, monitor the model, and trace its lineage.

    File tree: `challenger.json` and `model.safetensors` (read by
    `perennial.engine.export.load_model`), `reference.json`, `snapshot.json`, `skeleton.json`,
    `verdict.json`, `lineage.json`, `contract.json` (resolved), `model_card.md`, and
    `uncommitted.diff` when the working tree differed from the commit.
    """
    snapshot, verdict, lineage = content.snapshot, content.verdict, content.lineage
    based_on = content.challenger.base.origin.files.values() if content.challenger.base else ()
    bits = content.challenger.adapter.base_bits if content.challenger.adapter else FULL_BITS
    copy_tree(challenger, folder)  # first: it replaces what is there
    snapshot.write(folder)
    verdict.write(folder)
    content.skeleton.write(folder)
    write_atomically(folder / CONTRACT_FILE, contract.encode())
    if diff:
        write_atomically(folder / DIFF_FILE, diff)
    Reference(
        snapshot_digest=snapshot.digest(),
        # A row of the far future would make all later rows count as those that it was trained on.
        time_max=snapshot.data_time(datetime.now(UTC)),
        rows=snapshot.rows,
        blocks=content.validation.blocks,
        performance=verdict.performance_reference,
    ).write(folder)
    write_atomically(folder / LINEAGE_FILE, lineage.to_json().encode())
    write_atomically(folder / CARD_FILE, model_card(content).encode())
    found_by = {
        "perennial.snapshot": lineage.snapshot_digest[:DIGEST_CHARACTERS],
        "perennial.contract": lineage.contract_digest,
        "perennial.code": lineage.code_digest.removeprefix("sha256:")[:DIGEST_CHARACTERS],
        "perennial.commit": lineage.commit,
        "perennial.run_id": lineage.run_id,
        TRIGGER_TAG: trigger_name(lineage),
        "perennial.parent_version": lineage.parent_version,
        BASE_TAG: " ".join(each[:DIGEST_CHARACTERS] for each in based_on),
        BASE_BITS_TAG: str(bits) if based_on and bits < FULL_BITS else "",
    }
    return Candidate(
        name=content.name,
        description=content.description,
        package=folder,
        fingerprint=content.challenger.version_fingerprint(),
        version_tags={**tags, **{name: value for name, value in found_by.items() if value}},
        model_tags=tags,
        summary=verdict.summary[:DESCRIPTION_CHARACTERS],
        champion=verdict.champion_version,
        default_description=default_description(content),
    )


def promote(candidate: Candidate, tracking: Tracking, registry: ModelRegistry) -> ModelVersion:
    """Upload, register, then move the aliases.

    The version is created only after its files are complete in the store, and the champion moves
    last, so an alias always points to a complete model. A version that an earlier attempt
    registered is reused and its files are not touched.

    Raises:
        ChampionMovedError: the champion is another one than was compared with. If found
            before the upload, nothing is written; if found later, the version stays registered.
        PerennialError: a person rolled this model back, or the records of the champion contradict
            each other; nothing is changed.
    """
    registry.version_by_alias(candidate.name, CHAMPION)  # before a deleted model is created again
    registry.describe_model(
        candidate.name,
        candidate.description,
        candidate.model_tags,
        default=candidate.default_description,
    )
    version = registry.take_over(candidate.name, candidate.fingerprint)
    if version is not None:
        # The same data and seed would pass the gate again.
        refuse_rolled_back(
            f"the model that was trained is {version.name} version {version.version}, which",
            version.tags,
            f"train on other data or with another contract; `perennial promote {version.name} "
            f"{version.version} --force --reason …` makes it champion again",
        )
    else:
        registry.finish_change(candidate.name)  # of a killed writer: the alias is outdated
        found = registry.version_by_alias(candidate.name, CHAMPION)
        champion = found.version if found else ""
        if champion != candidate.champion:  # before the upload; registry.promote() asks again
            raise ChampionMovedError.between(candidate.name, candidate.champion, champion)
        # Two models of one run must not share a folder, nor two packages of one model.
        files = file_digests(candidate.package)
        content = digest_of({**files})
        path = f"model-{candidate.fingerprint[:12]}-{content[:12]}"
        # The fingerprint determines the weights.
        settled = [file.name for file in weight_files(candidate.package)]
        tracking.log_artifacts(candidate.package, path, settled)
        version = registry.register(
            candidate.name,
            source=tracking.artifact_uri(path),
            run_id=tracking.run_id,
            fingerprint=candidate.fingerprint,
            tags=candidate.version_tags,
            description=candidate.summary,
            files=files,
        )
    registry.set_alias(candidate.name, CHALLENGER, version.version)  # also if the next is refused
    decision = VersionDecision.now(GATE, candidate.summary).after(version.tags)
    registry.promote(
        candidate.name,
        version.version,
        candidate.champion,
        tags_of_promotion(version.version, candidate.champion, decision),
    )
    return version


def register_or_keep(
    content: CardContent,
    pack: Callable[[Path, CardContent], Candidate],
    judge: Callable[[], Verdict],
    tracking: Tracking,
    registry: ModelRegistry,
) -> tuple[Registration, CardContent]:
    """Register and promote a challenger; keep the champion if a newer one is not beaten.

    Returns:
        The registration, and the content with the last verdict.
    """

    def pack_and_promote(verdict: Verdict) -> ModelVersion:
        with TemporaryDirectory() as scratch:
            candidate = pack(Path(scratch) / "package", content.judged_again(verdict))
            return promote(candidate, tracking, registry)

    verdict, version = promote_while_better(
        content.verdict, pack_and_promote, judge, partial(registry.has_champion, content.name)
    )
    aliases: tuple[Alias, ...] = ("champion", "challenger")
    if version is not None:
        tracking.set_tags({"perennial.version": version.version})
        tracking.set_outcome("Promoted", verdict.summary)
        tracking.finish()
    else:
        # An earlier round may have registered it before the champion moved.
        version = registry.take_over(content.name, content.challenger.version_fingerprint())
        aliases = ("challenger",) if version else ()
    registration = Registration(
        name=content.name,
        version=version.version if version else "",
        aliases=aliases,
        weights_sha256=content.challenger.weights_sha256,
        tracking_run_id=version.run_id if version else content.lineage.tracking_run_id,
        replaced_version=verdict.champion_version if CHAMPION in aliases else "",
        judged_again=verdict if verdict is not content.verdict else None,
    )
    return registration, content.judged_again(verdict)


def nothing_registered(name: str, weights_sha256: str, tracking_run_id: str) -> Registration:
    """Return the record of a challenger that the gate rejected."""
    return Registration(
        name=name,
        version="",
        aliases=(),
        weights_sha256=weights_sha256,
        tracking_run_id=tracking_run_id,
    )


def _object(name: str, text: str) -> dict[str, JsonValue]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise PerennialError(
            f"the pipeline parameter `{name}` is not a JSON object",
            evidence=f"it begins {text[:60]!r}",
            action='pass an object, such as {"trigger":"manual"} for a trigger',
        )
    return value


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
