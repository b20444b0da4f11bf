"""Options of data loading."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from perennial.contracts.section import Advanced, Section


class Loading(Section):
    """Data loading: prefetching, worker threads, pinned memory."""

    prefetch_batches: Advanced[Annotated[int, Field(ge=0, le=64)] | None] = None
    """Batches gathered ahead by threads; 0 gathers them in the loop. None means 2 on a GPU, and 0
    on a CPU, where a thread would compete with the model for cores (4 % of a step of 3 ms), unless
    there are more `workers`. Raise it when the reported data wait is more than a few percent."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Threads that gather and augment batches. Raise it when the data wait is steadily high and
    `augment` consists of array operations, which run in parallel; plain Python code does not: move
    it into `encode`, which runs once."""
    pin_memory: Advanced[bool | None] = None
    """Put batches into page-locked memory, which a GPU copies while it computes. None means: on a
    GPU. Turn it off when locked memory is limited."""

    def on(self, device_type: str) -> "Loading":
        """Return these options with all defaults resolved."""
        is_gpu = device_type == "cuda"
        ahead, pinned = self.prefetch_batches, self.pin_memory
        return self.model_copy(
            update={
                "prefetch_batches": (2 if is_gpu or self.workers > 1 else 0)
                if ahead is None
                else ahead,
                "pin_memory": is_gpu if pinned is None else pinned,
            }
        )

    @model_validator(mode="after")
    def _is_used(self) -> Self:
        if self.workers > 1 and self.prefetch_batches == 0:
            raise ValueError(
                f"workers = {self.workers} has no effect with prefetch_batches = 0, which gathers "
                "in the loop: raise prefetch_batches, or remove it"
            )
        return self
