"""Frameworks: the same training as each is used; left out where it is not installed."""

import importlib.util
import logging
import tempfile
import time
import warnings
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset
from typing_extensions import override

from benchmarks.throughput.by_hand import endless
from benchmarks.throughput.cells import (
    LEARNING_RATE,
    LOG_EVERY,
    MAX_NORM,
    SEED,
    Cell,
    Subject,
    loss_of,
)
from benchmarks.throughput.contender import Contender, Place

HAS_LIGHTNING = importlib.util.find_spec("lightning") is not None
HAS_ACCELERATE = importlib.util.find_spec("accelerate") is not None
if HAS_LIGHTNING:
    import lightning
    from lightning.fabric.strategies import ModelParallelStrategy as FabricStrategy
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
if HAS_ACCELERATE:
    from accelerate import Accelerator


def silence() -> None:
    """Frameworks tell their users much; the tables are to be read here."""
    warnings.simplefilter("ignore")
    for name in ("lightning", "lightning.pytorch", "lightning.fabric", "accelerate", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)


def loader_of(cell: Cell, subject: Subject, place: Place) -> DataLoader[tuple[Tensor, ...]]:
    """What the frameworks are given; they make it distributed themselves."""
    data = TensorDataset(subject.inputs, subject.labels)
    return DataLoader(data, subject.batch_size // place.size, shuffle=True, drop_last=True)


class Accelerated(Contender):
    """Hugging Face Accelerate: `prepare`, `backward`, `clip_grad_norm_`."""

    name = "accelerate"

    @classmethod
    @override
    def refusal(cls, cell: Cell) -> str | None:
        if not HAS_ACCELERATE:
            return "not installed"
        if cell.strategy == "fsdp":
            return "FSDP asked for on CPUs silently becomes DDP"
        return None

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(cell, subject, place)
        torch.manual_seed(SEED)
        precision = "bf16" if cell.precision == "bf16" else "no"
        self._accelerator = Accelerator(cpu=True, mixed_precision=precision)
        model = subject.build()
        self._model, self._optimizer, self._loader = self._accelerator.prepare(
            model,
            torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE),
            loader_of(cell, subject, place),
        )
        self._batches = endless(self._loader)
        self._step = 0
        self.logged: list[tuple[float, float, float]] = []

    @override
    def run(self, steps: int) -> None:
        for _ in range(steps):
            inputs, labels = next(self._batches)
            with self._accelerator.autocast():
                loss = loss_of(self._model(inputs), labels)
            self._optimizer.zero_grad()
            self._accelerator.backward(loss)
            norm = self._accelerator.clip_grad_norm_(self._model.parameters(), MAX_NORM)
            self._optimizer.step()
            self._step += 1
            if self._step % LOG_EVERY == 0:
                self.logged.append((loss.item(), norm.item(), LEARNING_RATE))


if HAS_LIGHTNING:

    class Module(lightning.LightningModule):
        """The cell's model in Lightning's words."""

        def __init__(self, cell: Cell, subject: Subject) -> None:
            super().__init__()
            torch.manual_seed(SEED)
            self.cell, self.subject = cell, subject
            self.model = subject.build()

        @override
        def configure_model(self) -> None:
            if self.cell.strategy == "fsdp" and not hasattr(self, "is_sharded"):
                for block in self.subject.blocks(self.model):
                    fully_shard(block, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.model, mesh=self.device_mesh["data_parallel"])
                self.is_sharded = True

        @override
        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            inputs, labels = batch
            loss = loss_of(self.model(inputs), labels)
            self.log("loss", loss)
            return loss

        @override
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=LEARNING_RATE)

    class Stopwatch(Callback):
        """Measures from the first batch to the last: setting a trainer up is not counted."""

        def __init__(self) -> None:
            self.start = self.end = (0.0, 0.0)

        @override
        def on_train_batch_start(self, trainer: object, *arguments: object) -> None:
            if not self.start[0]:
                self.start = (time.perf_counter(), time.process_time())

        @override
        def on_train_batch_end(self, trainer: object, *arguments: object) -> None:
            self.end = (time.perf_counter(), time.process_time())


class Lightning(Contender):
    """PyTorch Lightning: a module, a trainer, `self.log` at each step."""

    name = "lightning"

    @classmethod
    @override
    def refusal(cls, cell: Cell) -> str | None:
        return None if HAS_LIGHTNING else "not installed"

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(cell, subject, place)
        self._folder = tempfile.TemporaryDirectory(prefix="throughput-lightning-")
        self._module = Module(cell, subject)
        self._loader = loader_of(cell, subject, place)

    @override
    def run(self, steps: int) -> None:
        # One fit of so many updates.
        strategy: object = {"single": "auto", "ddp": DDPStrategy()}.get(self.cell.strategy)
        if strategy is None:
            strategy = ModelParallelStrategy(
                data_parallel_size=self.place.size, tensor_parallel_size=1
            )
        # Its ModelParallelStrategy cannot clip: it runs without, which is an advantage.
        clip = None if self.cell.strategy == "fsdp" else MAX_NORM
        watch = Stopwatch()
        trainer = lightning.Trainer(
            accelerator="cpu", devices=self.place.size, strategy=strategy, max_steps=steps + 1,
            max_epochs=-1, precision="bf16-mixed" if self.cell.precision == "bf16" else "32-true",
            gradient_clip_val=clip, log_every_n_steps=LOG_EVERY, callbacks=[watch],
            logger=CSVLogger(self._folder.name), enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        if self.cell.strategy == "fsdp":
            self._module = Module(self.cell, self.subject)
        trainer.fit(self._module, self._loader)
        # One more update than asked for: the first warms up and its data is not fetched inside.
        self.measured = tuple(
            (end - start) * steps / (steps + 1)
            for start, end in zip(watch.start, watch.end, strict=True)
        )

    @override
    def close(self) -> None:
        self._folder.cleanup()
        super().close()


class Fabric(Contender):
    """Lightning Fabric: the stock loop with `setup`, `backward` and `clip_gradients`."""

    name = "fabric"
    strategies: ClassVar = {"single": "auto", "ddp": "ddp"}

    @classmethod
    @override
    def refusal(cls, cell: Cell) -> str | None:
        return None if HAS_LIGHTNING else "not installed"

    def __init__(self, cell: Cell, subject: Subject, place: Place) -> None:
        super().__init__(cell, subject, place)
        torch.manual_seed(SEED)
        precision = "bf16-mixed" if cell.precision == "bf16" else "32-true"
        self._fabric = lightning.Fabric(
            accelerator="cpu", devices=place.size, precision=precision,
            strategy=self._strategy(cell, subject),
        )  # fmt: skip
        self._fabric.launch()
        model = self._fabric.setup_module(subject.build())
        self._model = model
        self._optimizer = self._fabric.setup_optimizers(
            torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        )
        self._loader = self._fabric.setup_dataloaders(loader_of(cell, subject, place))
        self._batches = endless(self._loader)
        self._step = 0
        self.logged: list[tuple[float, float, float]] = []

    def _strategy(self, cell: Cell, subject: Subject) -> object:
        if cell.strategy != "fsdp":
            return self.strategies[cell.strategy]

        def shard(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
            for block in subject.blocks(model):
                fully_shard(block, mesh=mesh["data_parallel"])
            fully_shard(model, mesh=mesh["data_parallel"])
            return model

        return FabricStrategy(shard, data_parallel_size=self.place.size, tensor_parallel_size=1)

    @override
    def run(self, steps: int) -> None:
        for _ in range(steps):
            inputs, labels = next(self._batches)
            loss = loss_of(self._model(inputs), labels)
            self._optimizer.zero_grad()
            self._fabric.backward(loss)
            norm = self._fabric.clip_gradients(self._model, self._optimizer, max_norm=MAX_NORM)
            self._optimizer.step()
            self._step += 1
            if self._step % LOG_EVERY == 0:
                norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                self.logged.append((loss.item(), norm.item(), LEARNING_RATE))
