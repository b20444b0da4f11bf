"""What `train_model` receives: the model, how to train it, and on what."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from components.contracts.data import ModelSection
from components.contracts.section import Section
from components.engine.config import TrainingSection


class ResourcesSection(Section):
    """What a training may use."""

    num_processes: Annotated[int, Field(ge=1, le=4096)] = 2
    """Processes that train together: one per GPU, or one per few processor cores."""
    threads_per_process: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of each process. Never more in all than there are free cores: a step can then take
    tens of times as long."""
    max_restarts: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a training that was killed (preemption, out of memory, lost machine) resumes from
    its last checkpoint. An exception in the code fails at once: it would come again."""


class TrainModelConfig(Section):
    """The sections that `train_model` reads."""

    model: ModelSection
    training: TrainingSection = TrainingSection()
    resources: ResourcesSection = ResourcesSection()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        processes = self.resources.num_processes
        if self.training.strategy == "single" and processes != 1:
            raise ValueError(
                f"training.strategy = 'single' is one process, but resources.num_processes = "
                f"{processes}; set it to 1, or strategy to 'fsdp' or 'ddp'"
            )
        parts = self.training.parallelism.data_size(processes)
        if self.training.global_batch_size < parts:
            raise ValueError(
                f"training.global_batch_size = {self.training.global_batch_size} leaves some of "
                f"{parts} groups of processes with rows of their own without any; raise it"
            )
        return self
