"""What `register_model` receives of a run that trained a small linear model, as folders."""

import json
from datetime import datetime
from pathlib import Path

from perennial.contracts.data import ModelSection
from perennial.contracts.gate import BlockPerformance, GateReason, Verdict
from perennial.contracts.section import canonical_json
from perennial.contracts.training import Challenger, TrainingResult
from perennial.contracts.validation import ValidationReport
from perennial.gate.config import GateSection
from perennial.register_model.config import RegisterModelConfig, RegistrySection
from small_models import GOOD, TASK, stream, write_challenger, write_skeleton, write_snapshot

NAME = "clicks"
CONTRACT = canonical_json(
    RegisterModelConfig(
        model=ModelSection(name=NAME, task=TASK),
        registry=RegistrySection(description="Predicts clicks.", tags={"team": "ads"}),
    ).model_dump(mode="json")
    | {"gate": GateSection(resamples=300).model_dump(mode="json"), "training": {"seed": 7}}
)
TRIGGER = json.dumps({"trigger": "drift", "evidence": {"columns": ["price"]}})
INPUTS = ("snapshot", "validation", "training", "challenger", "skeleton", "verdict")


def write_inputs(folder: Path, weights=GOOD, champion="", promote=True) -> Challenger:
    """Every input of the step; `champion` is what the verdict compared with."""
    snapshot = write_snapshot(folder / "data", stream())
    snapshot.write(folder / "snapshot")
    ValidationReport(snapshot_digest=snapshot.digest(), facts={}, expectations=(), blocks=()).write(
        folder / "validation"
    )
    challenger = write_challenger(folder / "challenger", snapshot, weights)
    write_skeleton(folder / "skeleton", constant=0.5)
    TrainingResult(
        fingerprint="training", task=TASK, options={}, columns=snapshot.task_columns,
        task_state={}, steps=10, world_size=1, strategy="single", num_parameters=3, history=(),
        evaluations=(), checkpoints=(), seconds=1.0, num_resumes=0,
    ).write(folder / "training")  # fmt: skip
    Verdict(
        promote=promote, summary="Promote: it is better.", comparisons=(),
        reasons=(GateReason(condition="better", held=promote, detail="by much"),),
        baselines={"constant": {"roc_auc": 0.5}}, champion_version=champion, test_rows=500,
        test_blocks=20, notes=("the champion saw 3 test rows",),
        performance_reference=(BlockPerformance(start=datetime(2025, 1, 2), rows=9, loss=0.4),),
    ).write(folder / "verdict")  # fmt: skip
    return challenger


def step_arguments(folder: Path, contract=CONTRACT, trigger=TRIGGER) -> dict[str, str]:
    """The step's arguments, with these inputs and outputs beside them."""
    return {
        "contract": contract, "trigger": trigger,
        **{name: str(folder / name) for name in (*INPUTS, "registration")},
        "report": str(folder / "report.html"),
    }  # fmt: skip
