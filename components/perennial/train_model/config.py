"""Configuration of `train_model`."""

from typing import Self

from pydantic import model_validator

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Section
from perennial.engine.config.training import TrainingSection
from perennial.training_jobs.config import ResourcesSection


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
                f"training.global_batch_size = {self.training.global_batch_size} is less than the "
                f"{parts} groups of processes that share the rows; raise it"
            )
        return self
