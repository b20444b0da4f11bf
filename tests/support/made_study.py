"""A study whose confirmations are real checkpoints, of linear models of chosen quality."""

import hashlib
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch.distributed.checkpoint as dcp

from made_trials import ACTIVATION, RATE, made_plan, made_trials
from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.training import CheckpointRecord, TrainingResult
from perennial.engine.checkpoints.folder import CheckpointManifest, Progress, commit, partial_path
from perennial.studies.records import Trial, TrialTraining
from small_models import GOOD, OPTIONS, TASK, linear_model, stream, write_snapshot

SEEDS = 3


class MadeStudy:
    """A stored study of 16 search trials, of which GELU's are better on validation rows."""

    def __init__(self, folder: Path, environment, days: int, **study) -> None:
        self.folder, self.environment = folder, environment
        self.snapshot = write_snapshot(folder / "data", stream(days=days))
        plan = made_plan(
            {RATE: {"log": (1e-4, 1e-1)}},
            {ACTIVATION: {"choices": ("relu", "gelu")}},
            confirmations=SEEDS,
            **study,
        )
        contract = {
            "model": {"name": "made", "task": TASK, "options": OPTIONS},
            "training": {"steps": 100},
        }
        self.plan = plan.model_copy(
            update={"contract": contract, "metric": "roc_auc", "snapshot": self.snapshot.digest()}
        )
        self.store = open_store(environment.store_uri)
        trials = made_trials(self.plan, self._value, 16, noise=0.001)
        for trial in trials:
            self.write(trial)
        self.best = {
            name: max(
                (trial for trial in trials[1:] if trial.values[ACTIVATION] == name),
                key=lambda trial: trial.value,
            )
            for name in ("relu", "gelu")
        }
        self.baseline = trials[0]

    @staticmethod
    def _value(at):
        return 0.8 - 0.1 * (at[RATE] - 0.5) ** 2 + 0.02 * (at[ACTIVATION] == "gelu")

    def write(self, trial: Trial) -> None:
        """Store a trial's record."""
        key = f"{self.plan.prefix}/trials/{trial.number:04d}.json"
        self.store.write(key, trial.to_json().encode())

    def confirm(self, first: int, candidate: Trial, noise: float, states=("complete",) * SEEDS):
        """Store confirmations: models of which the weight of the useless column is about `noise`."""
        for seed, state in enumerate(states):
            name = hashlib.sha256(f"{candidate.number} {seed}".encode()).hexdigest()
            random = np.random.default_rng([candidate.number, seed])
            if state == "complete":
                self._train(name, (GOOD[0], noise + 0.02 * random.standard_normal()))
            training = TrialTraining(seed=seed, fingerprint=name, value=0.8)
            self.write(
                Trial(
                    number=first + seed,
                    stage="confirm",
                    values=candidate.values,
                    candidate=candidate.number,
                    state=state,
                    value=0.8 if state == "complete" else None,
                    trainings=(training,) if state == "complete" else (),
                )
            )

    def confirm_all(self, baseline: float, gelu: float, relu: float) -> None:
        """Confirm baseline and finalists with models of these weights of the useless column."""
        self.confirm(17, self.baseline, baseline)
        self.confirm(20, self.best["gelu"], gelu)
        self.confirm(23, self.best["relu"], relu)

    def _train(self, name: str, weights: tuple[float, float]) -> None:
        folder = Path(self.environment.store_uri) / "training" / name[:16]
        task, model = linear_model(self.snapshot, weights)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            part = partial_path(folder / "checkpoints", 100)
            dcp.save({"model": model.state_dict()}, checkpoint_id=part, no_dist=True)
        manifest = CheckpointManifest(
            fingerprint=name, step=100, metrics={}, files={}, progress=Progress(step=100)
        )
        uri = str(commit(folder / "checkpoints", manifest))
        record = CheckpointRecord(step=100, uri=uri, metrics={"roc_auc": 0.8}, kept_as=("best",))
        TrainingResult(
            fingerprint=name, task=TASK, options=task.options.model_dump(mode="json"),
            columns=task.columns, task_state=task.state(), steps=100, world_size=1,
            strategy="single", num_parameters=3, history=(), evaluations=(),
            checkpoints=(record,), seconds=1.0, num_resumes=0,
        ).write(folder)  # fmt: skip

    @property
    def handed_on(self) -> Path:
        """The file that the step reads: plan and snapshot."""
        path = self.folder / "study"
        self.snapshot.write(self.folder / "snapshot")
        hand_on(path, self.plan, self.folder / "snapshot")
        return path


@pytest.fixture
def make_study(environment, tmp_path):
    """Makes a stored study."""

    def make(days: int = 90, **study) -> MadeStudy:
        return MadeStudy(tmp_path, environment, days, **study)

    return make
