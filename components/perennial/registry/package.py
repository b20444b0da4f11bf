"""Package: the files of a model version, and the fingerprint by which a retry finds it again."""

import hashlib
import json
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import JsonValue

from perennial.clients.object_store import copy_tree
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.lineage import CONTRACT_FILE, DIFF_FILE, LINEAGE_FILE, Lineage
from perennial.contracts.monitoring import Reference
from perennial.contracts.version_decisions import DESCRIPTION_CHARACTERS
from perennial.engine.export import WEIGHTS_FILE
from perennial.registry.model_card import CardContent, model_card, trigger_name
from perennial.registry.promotion import Candidate

CARD_FILE = "model_card.md"
# Packages that compute or read the numbers; another version may give another model.
PACKAGES = ("torch", "numpy", "polars", "pyarrow", "scikit-learn", "scipy", "safetensors", "kfp")


def trace_lineage(
    environment: Environment,
    *,
    contract: str,
    trigger: str,
    snapshot_digest: str,
    tracking_run_id: str,
    parent_version: str,
) -> Lineage:
    """Return the model's lineage.

    Args:
        environment: Code, commit and run.
        contract: The resolved contract, as JSON.
        trigger: Why the training was started, as JSON.
        snapshot_digest: Digest of the snapshot that it was trained on.
        tracking_run_id: The MLflow run.
        parent_version: The champion that was replaced.

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
        run_id=environment.run_id,
        tracking_run_id=tracking_run_id,
        trigger=_object("trigger", trigger),
        parent_version=parent_version,
    )


def uncommitted(environment: Environment) -> bytes:
    """Return the working tree's uncommitted changes from the run's folder; empty without any."""
    kept = environment.run_folder / DIFF_FILE if environment.run_folder else None
    return kept.read_bytes() if kept is not None and kept.is_file() else b""


def write_package(
    folder: Path, challenger: Path, content: CardContent, contract: str, diff: bytes
) -> None:
    """Write all files needed to score raw rows, monitor the model, and trace its lineage.

    File tree: `challenger.json` and `model.safetensors` (read by
    `perennial.engine.export.load_model`), `reference.json`, `snapshot.json`, `skeleton.json`,
    `verdict.json`, `lineage.json`, `contract.json` (resolved), `model_card.md`, and
    `uncommitted.diff` when the working tree differed from the commit.
    """
    copy_tree(challenger, folder)
    content.snapshot.write(folder)
    content.verdict.write(folder)
    content.skeleton.write(folder)
    write_atomically(folder / CONTRACT_FILE, contract.encode())
    if diff:
        write_atomically(folder / DIFF_FILE, diff)
    Reference(
        snapshot_digest=content.snapshot.digest(),
        time_max=content.snapshot.time_max,
        rows=content.snapshot.rows,
        blocks=content.validation.blocks,
        performance=content.verdict.performance_reference,
    ).write(folder)
    write_atomically(folder / LINEAGE_FILE, content.lineage.to_json().encode())
    write_atomically(folder / CARD_FILE, model_card(content).encode())


def candidate_of(package: Path, content: CardContent, tags: Mapping[str, str]) -> Candidate:
    """Return the candidate for promotion of a written package; `tags` are the contract's."""
    lineage = content.lineage
    found_by = {
        "perennial.snapshot": lineage.snapshot_digest,
        "perennial.contract": lineage.contract_digest,
        "perennial.code": lineage.code_digest,
        "perennial.commit": lineage.commit,
        "perennial.run_id": lineage.run_id,
        "perennial.trigger": trigger_name(lineage),
        "perennial.parent_version": lineage.parent_version,
    }
    return Candidate(
        name=content.name,
        description=content.description,
        package=package,
        settled=(WEIGHTS_FILE,),
        fingerprint=content.challenger.version_fingerprint(),
        version_tags={**tags, **{name: value for name, value in found_by.items() if value}},
        model_tags=tags,
        summary=content.verdict.summary[:DESCRIPTION_CHARACTERS],
        champion=content.verdict.champion_version,
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
