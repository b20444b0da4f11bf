"""Versions of a small model, registered as the pipeline's last step does it, in a home of its own."""

import hashlib
import json
from pathlib import Path

import pytest

from perennial.cli import main
from perennial.clients.tracking import open_tracking
from perennial.contract import Contract
from perennial.contracts.data import DataSection
from perennial.contracts.gate import Comparison, GateReason, Interval, Verdict
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.training import TrainingResult
from perennial.contracts.validation import ValidationReport
from perennial.gate.config import GateSection
from perennial.registry.model_card import CardContent
from perennial.registry.model_registry import open_registry
from perennial.registry.promotion import promote, trace_lineage, write_package
from small_models import OPTIONS, TASK, average_with, stream, write_challenger, write_snapshot

NAME = "clicks"
DIFF = b"+rate = 2\n"
WAIVED = CheckResult(
    check="overfit_one_batch", outcome="failed", measured="0.5", expected="0.0", source="guide",
    waived="labels are noisy by nature",
)  # fmt: skip


@pytest.fixture
def home(environment, tmp_path):
    """The folder to give to `--home`; its addresses are the environment's."""
    return tmp_path


@pytest.fixture
def register(environment, tmp_path):
    """Registers a version and makes it champion in place of `champion`; `among`: an ensemble."""
    return registrar(environment, tmp_path)


def registrar(environment, tmp_path):
    """The same for a home that several tests share."""
    snapshots = {}

    def run(
        weights, champion="", *, seed=7, days=90, promoted=True, among=None, write=write_challenger
    ):
        if days not in snapshots:
            frame = stream(days=days)
            snapshots[days] = write_snapshot(tmp_path / f"data-{days}", frame)
        folder = tmp_path / f"challenger-{weights}-{seed}-{days}"
        content = _content(
            environment, folder, snapshots[days], weights=weights, champion=champion, seed=seed,
            among=among, write=write,
        )  # fmt: skip
        package = tmp_path / f"package-{folder.name}"
        contract = contract_of(snapshots[days].data, seed).to_json()
        candidate = write_package(
            package, content, challenger=folder, contract=contract, diff=DIFF, tags={}
        )
        tracking, registry = open_tracking(environment, NAME), open_registry(environment)
        if promoted:
            return promote(candidate, tracking, registry).version
        registry.describe_model(NAME, "", {})
        tracking.log_artifacts(package, folder.name)
        return registry.register(
            NAME, source=tracking.artifact_uri(folder.name), run_id=tracking.run_id,
            fingerprint=folder.name, tags={}, description="Promote: it is better.",
        ).version  # fmt: skip

    return run


def contract_of(data: DataSection, seed: int) -> Contract:
    """The contract of the version that was trained on this data with this seed."""
    return Contract.model_validate(
        {
            "model": {"name": NAME, "task": TASK, "options": OPTIONS},
            "data": data.model_dump(),
            "training": {"seed": seed},
            "gate": GateSection(min_test_rows=20, min_effective_days=2.0),  # independent days
        }
    )


def _content(
    environment, folder: Path, snapshot, *, weights, champion, seed, among, write
) -> CardContent:
    challenger = write(folder, snapshot, weights, f"{folder.name}")
    if among is not None:
        challenger = average_with(folder, snapshot, among)
    gain = Interval(estimate=0.25, low=0.125, high=0.5) if champion else None
    verdict = Verdict(
        promote=True, summary="Promote: it is better.", champion_version=champion,
        comparisons=(
            Comparison(
                metric="roc_auc", challenger=0.875, champion=0.625 if champion else None,
                improvement=gain,
            ),
        ),
        reasons=(GateReason(condition="better", held=True, detail="by much"),),
        baselines={"constant": {"roc_auc": 0.5}}, test_rows=500, test_blocks=20,
        performance_reference=(),
    )  # fmt: skip
    training = TrainingResult(
        fingerprint="training", task=TASK, options=OPTIONS, columns=snapshot.task_columns,
        task_state={}, steps=10, world_size=1, strategy="single", num_parameters=3, history=(),
        evaluations=(), checkpoints=(), seconds=1.0, num_resumes=0,
        initial=challenger.initial, adapter=challenger.adapter,
    )  # fmt: skip
    return CardContent(
        name=NAME,
        description="Predicts clicks.",
        snapshot=snapshot,
        validation=ValidationReport(
            snapshot_digest=snapshot.digest(), facts={}, expectations=(), blocks=()
        ),
        skeleton=SkeletonReport(results=(WAIVED,), baselines={"constant": {"roc_auc": 0.5}}),
        training=training,
        challenger=challenger,
        verdict=verdict,
        lineage=trace_lineage(
            environment,
            contract=contract_of(snapshot.data, seed).to_json(),
            trigger=json.dumps({"trigger": "drift", "evidence": {"columns": ["price"]}}),
            snapshot_digest=snapshot.digest(),
            tracking_run_id="run",
            parent_version=champion,
            members=challenger.members,
            trained=training,
        ).model_copy(update={"diff_digest": hashlib.sha256(DIFF).hexdigest()}),
    )


@pytest.fixture
def perennial(home, capsys):
    """Runs a verb; gives its exit code and everything that it printed."""

    def run(*arguments):
        code = main([*arguments, "--home", str(home)])
        output = capsys.readouterr()
        return code, output.out + output.err

    return run
