"""Compilation: pipelines to KFP's intermediate representation, the same bytes every time."""

from pathlib import Path

from kfp import compiler
from kfp.dsl.base_component import BaseComponent

from perennial.continuous_training import continuous_training
from perennial.drift_monitoring import drift_monitoring
from perennial.hyperparameter_study import study_pipeline

PIPELINES: dict[str, BaseComponent] = {
    "continuous_training": continuous_training,
    "drift_monitoring": drift_monitoring,
    "hyperparameter_study": study_pipeline(workers=1),
}


def compile_pipeline(name: str, target: Path, *, workers: int = 1) -> Path:
    """Write a pipeline's intermediate representation.

    What runs on a laptop is this file; what is uploaded to a cluster is this file with its logical
    image names replaced by digests.

    `name` is a key of `PIPELINES`; `workers` are the tasks that share a study's trials.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    pipeline = PIPELINES[name] if workers == 1 else study_pipeline(workers)
    compiler.Compiler().compile(pipeline, package_path=str(target))
    return target
