"""Memory plan: what a training needs per process under each layout, and which one was chosen."""

from perennial.contracts.section import Section


class MemoryEstimate(Section):
    """One process's memory under one layout, in bytes."""

    strategy: str
    zero_stage: int
    """ZeRO stage: 0 shards nothing, 2 gradients and optimizer state, 3 the weights as well."""
    activation_checkpointing: str
    weights: int
    """Parameters and buffers that this process holds all the time."""
    gradients: int
    optimizer_state: int
    averaged_weights: int
    """The moving average; 0 without one."""
    activations: int
    """Beside weights and gradients, at the worst moment of a forward and backward pass."""
    gathered: int
    """Weights of other processes that are here for a block's time."""
    communication: int
    """Communication buffers: reduction buckets, gradients of a block before their reduction."""
    update: int
    """Temporary memory of the optimizer during a step."""
    staging: int
    """A copy of the state that is being written to a checkpoint, where it lies in this memory."""
    loading: int
    """The most before the first update, while the initial model is divided."""
    peak: int
    """The most at any moment: not the sum, for activations are gone when the optimizer works."""
    refused: str = ""
    """Reason why this layout cannot run with any memory; empty when it can."""

    @property
    def name(self) -> str:
        """The layout in words."""
        stage = f" (ZeRO {self.zero_stage})" if self.zero_stage else ""
        checkpointing = self.activation_checkpointing
        extra = "" if checkpointing == "none" else f" + {checkpointing} checkpointing"
        return f"{self.strategy}{stage}{extra}"


class MemoryPlan(Section):
    """Decision of `strategy = "auto"`."""

    device: str
    available: int
    """Bytes that one process may use."""
    margin: float
    """Share of the available bytes that is left free, for fragmentation and the plan's error."""
    micro_batch_rows: int
    """Rows of a forward pass."""
    measured_rows: int
    """Rows that activations were measured with; fewer, when all would not have fitted."""
    estimates: tuple[MemoryEstimate, ...]
    """The layouts in the order in which they are tried, up to the chosen one."""
    reason: str
    """Reason for the last of them, in a sentence."""

    @property
    def chosen(self) -> MemoryEstimate:
        """The layout that runs."""
        return self.estimates[-1]

    @property
    def limit(self) -> int:
        """Return the limit of a layout's peak, in bytes."""
        return int(self.available * (1.0 - self.margin))

    def rows(self) -> list[list[str]]:
        """Return the table of `header`, as text."""
        return [
            [
                estimate.name,
                *(f"{getattr(estimate, column) / 1e6:,.1f}" for column in self.columns()),
                self._verdict(estimate),
            ]
            for estimate in self.estimates
        ]

    def header(self) -> list[str]:
        """Names of the columns of `rows`."""
        return ["layout", *(column.replace("_", " ") for column in self.columns()), "verdict"]

    @staticmethod
    def columns() -> list[str]:
        """Return the parts of an estimate, in the table's order."""
        fields = MemoryEstimate.model_fields
        return [name for name in fields if fields[name].annotation is int and name != "zero_stage"]

    def text(self) -> str:
        """Return the table and the reason, for logs."""
        table = [self.header(), *self.rows()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in table
        ]
        return "\n".join([f"memory per process on {self.device}, MB", *lines, self.reason])

    def _verdict(self, estimate: MemoryEstimate) -> str:
        if estimate.refused:
            return "cannot run"
        return "fits" if estimate.peak <= self.limit else "too much"
