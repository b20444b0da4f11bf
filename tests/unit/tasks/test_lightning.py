"""A LightningModule's training step gives the loss of each example; what it cannot give is refused.

The modules here have its protocol alone; tests/adapters trains a real one.
"""

from functools import partialmethod

import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.engine.objective import weighted_losses
from perennial.engine.profiling.flops import flops_per_example
from perennial.engine.task import LABEL, WEIGHT, NoOptions
from perennial.tasks.lightning import LightningTask, training_options

COLUMNS = TaskColumns(label="label", features={"x": "Float64"})
BATCH = {
    "x": torch.randn(5, 3, generator=torch.Generator().manual_seed(0)),
    LABEL: torch.arange(5) % 4,
}


class Module(nn.Module):
    """A module with one loss as a part, as most have it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def forward(self, x):
        return self.layer(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = self.criterion(self(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)


def step_of(function):
    """The module with another training step."""
    return type(
        "Own", (Module,), {"training_step": lambda self, batch, index: function(self, *batch)}
    )


def task_of(module, names=("x", LABEL)):
    members = {"kind": "multiclass", "names": names, "module": lambda self: module()}
    return type("Task", (LightningTask,), {**members, "dataset": lambda self, rows: rows})(
        NoOptions(), COLUMNS
    )


@pytest.mark.parametrize(
    "step",
    [
        lambda self, x, y: functional.cross_entropy(self(x), y),
        lambda self, x, y: {"loss": functional.nll_loss(self(x).log_softmax(1), y)},
        lambda self, x, y: functional.mse_loss(self(x), functional.one_hot(y, 4).float()),
        lambda self, x, y: (self(x) - functional.one_hot(y, 4)).abs().mean(),
        lambda self, x, y: functional.cross_entropy(self(x), y) + 0.1 * self(x).square().mean(),
        Module.training_step,
    ],
)
def test_the_mean_of_the_losses_and_its_gradient_are_the_steps(step):
    module = Module if step is Module.training_step else step_of(step)
    task, one = task_of(module), module()
    output = task.build_model()(BATCH["x"]).requires_grad_()
    losses = task.losses(output, BATCH)
    assert losses.shape == (5,)
    one.forward, one.log = lambda x: output, print
    found = one.training_step((BATCH["x"], BATCH[LABEL]), 0)
    expected = found["loss"] if isinstance(found, dict) else found
    torch.testing.assert_close(losses.mean(), expected)
    gradients = [
        torch.autograd.grad(each, output, retain_graph=True) for each in (losses.mean(), expected)
    ]
    torch.testing.assert_close(*gradients)
    alone = task.losses(output[2:3], {name: each[2:3] for name, each in BATCH.items()})
    torch.testing.assert_close(alone[0], losses[2])


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        (
            lambda self, x, y: functional.cross_entropy(self.layer(x), y),
            "calls self.layer directly",
        ),
        *[
            (
                lambda self, x, y, of=of: (
                    functional.cross_entropy(self(x), y)
                    + 0.1 * sum(each.abs().sum() for each in of(self))
                ),
                "reads weights: self.",
            )
            for of in (
                lambda self: self.parameters(),
                lambda self: self.layer.parameters(),
                lambda self: [self.layer.weight],
            )
        ],
        (
            lambda self, x, y: functional.cross_entropy(self(x), y, weight=torch.ones(4)),
            "weighs the classes",
        ),
        (
            lambda self, x, y: functional.cross_entropy(self(x), y, reduction="sum"),
            "does not return a mean over the examples",
        ),
        (lambda self, x, y: None, "does not return a mean over the examples"),
        (lambda self, x, y: functional.cross_entropy(self(x / 255), y), "changes the inputs"),
        (
            lambda self, x, y: functional.cross_entropy(self(x), y).sqrt(),
            "is not the mean of the losses of the examples",
        ),
        (
            lambda self, x, y: functional.cross_entropy(self(x), y, ignore_index=0),
            "is not the mean of the losses of the examples",
        ),
    ],
)
def test_other_steps_are_refused(step, problem):
    """Also where the first loss is of one example, whose mean is its own."""
    task = task_of(step_of(step))
    model = task.build_model()

    def train(sizes):
        for rows in sizes:
            batch = {name: each[:rows] for name, each in BATCH.items()}
            task.losses(model(batch["x"]), batch)

    with pytest.raises(BadTaskError, match=problem):
        train([1, 5])


@pytest.mark.parametrize(
    "share",
    [
        lambda self, index: min(1.0, self.global_step / 100),
        lambda self, index: 0.9**self.current_epoch,
        lambda self, index: index % 2,
    ],
)
def test_a_step_whose_loss_follows_the_training_is_refused(share):
    """The Trainer would count; without it, all counters stay at 0."""

    def training_step(self, batch, index):
        loss = functional.cross_entropy(self(batch[0]), batch[1])
        return loss + share(self, index) * self(batch[0]).square().mean()

    counters = {"global_step": property(lambda self: 0), "current_epoch": property(lambda self: 0)}
    task = task_of(type("Own", (Module,), {"training_step": training_step, **counters}))
    with pytest.raises(BadTaskError, match="changes as the training goes on"):
        task.losses(task.build_model()(BATCH["x"]), BATCH)


def test_a_step_may_count_for_what_it_shows():
    def training_step(self, batch, index):
        self.log("epoch", self.current_epoch + index)
        if self.current_epoch > 0:
            self.logger.experiment.add_text("epoch", str(self.current_epoch))
        return functional.cross_entropy(self(batch[0]), batch[1])

    counter = {"current_epoch": property(lambda self: 0), "logger": None}
    task = task_of(type("Own", (Module,), {"training_step": training_step, **counter}))
    assert task.losses(task.build_model()(BATCH["x"]), BATCH).shape == (5,)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_loss_with_numbers_of_its_own_is_computed_beside_one_without_values(is_first):
    """The worker counts the operations of a pass on tensors without values, then trains."""

    class Weighted(Module):
        def __init__(self):
            super().__init__()
            self.criterion = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0, 1.0, 1.0, 1.0]))

        def training_step(self, batch, index):
            return self.criterion(self(batch[0]), functional.one_hot(batch[1], 4).float())

    task = task_of(Weighted)
    output = task.build_model()(BATCH["x"])
    before = None if is_first else task.losses(output, BATCH)
    assert flops_per_example(task, BATCH) is not None
    losses = task.losses(output, BATCH)
    assert losses.shape == (5,)
    assert before is None or torch.equal(losses, before)


class Pair(Module):
    """A module of two inputs, of which the second may be left out."""

    def forward(self, x, other=None, *, scale=0.5):
        return self.layer(x if other is None else x - other)


@pytest.mark.parametrize(
    "call",
    [
        lambda self, x, other: self(other, x),
        lambda self, x, other: self(x),
        lambda self, x, other: self(x, other) - self(other, other),
        lambda self, x, other: self(x, other, scale=0.7),
        lambda self, x, other: self(x, None),
    ],
)
def test_a_step_whose_inputs_are_not_those_of_the_model_is_refused(call):
    """Its own script would train another output, which must not be taken for the engine's."""
    step = {"training_step": lambda self, b, i: functional.cross_entropy(call(self, *b[:2]), b[2])}
    task = task_of(type("Own", (Pair,), step), ("x", "other", LABEL))
    batch = {**BATCH, "other": BATCH["x"] + 1}
    with pytest.raises(BadTaskError, match="changes the inputs"):
        task.losses(task.build_model()(batch["x"], batch["other"]), batch)


@pytest.mark.parametrize(
    "call",
    [
        lambda self, x, other: self(x, other),
        lambda self, x, other: self(other=other, x=x, scale=float("0.5")),
    ],
)
def test_a_step_may_name_its_inputs(call):
    step = {"training_step": lambda self, b, i: functional.cross_entropy(call(self, *b[:2]), b[2])}
    task = task_of(type("Own", (Pair,), step), ("x", "other", LABEL))
    batch = {**BATCH, "other": BATCH["x"] + 1}
    output = task.build_model()(batch["x"], batch["other"])
    expected = functional.cross_entropy(output, BATCH[LABEL], reduction="none")
    torch.testing.assert_close(task.losses(output, batch), expected)


def test_a_step_that_weighs_the_examples_weighs_them_once():
    def step(self, x, y, weight):
        return (functional.cross_entropy(self(x), y, reduction="none") * weight).mean()

    task = task_of(step_of(step), ("x", LABEL, WEIGHT))
    batch = {**BATCH, WEIGHT: torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])}
    output = task.build_model()(BATCH["x"])
    expected = functional.cross_entropy(output, BATCH[LABEL], reduction="none") * batch[WEIGHT]
    torch.testing.assert_close(weighted_losses(task, output, batch), expected)


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"on_after_backward": lambda self: None}, "on_after_backward"),
        ({"on_train_start": lambda self: self.layer.requires_grad_(False)}, "on_train_start"),
        ({"automatic_optimization": False}, "automatic_optimization = False"),
    ],
)
def test_hooks_are_refused_when_the_model_is_built(members, named):
    with pytest.raises(BadTaskError, match=named):
        task_of(type("Own", (Module,), members)).build_model()


def test_the_optimizer_becomes_options_of_training():
    options = training_options(Module())
    assert options["optimizer"] == {
        "name": "adamw", "betas": [0.9, 0.95], "learning_rate": 0.01, "weight_decay": 0.1,
    }  # fmt: skip
    assert options["clipping"] == {"method": "none"}


def test_adam_with_decoupled_decay_is_adamw():
    def configure(self, is_decoupled):
        return torch.optim.Adam(
            self.parameters(), weight_decay=0.1, decoupled_weight_decay=is_decoupled
        )

    for is_decoupled, name in ((False, "adam"), (True, "adamw")):
        own = {"configure_optimizers": partialmethod(configure, is_decoupled)}
        assert training_options(type("Own", (Module,), own)())["optimizer"]["name"] == name


def test_an_optimizer_may_leave_out_what_is_frozen():
    module = Module()
    module.layer.weight.requires_grad_(False)
    module.configure_optimizers = lambda: torch.optim.SGD([module.layer.bias], lr=0.1)
    assert training_options(module)["optimizer"]["name"] == "sgd"


def sgd(module):
    return torch.optim.SGD(module.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("configure", "problem"),
    [
        (lambda self: [sgd(self), sgd(self)], "several optimizers"),
        (
            lambda self: {
                "optimizer": (o := sgd(self)),
                "lr_scheduler": torch.optim.lr_scheduler.StepLR(o, 1),
            },
            "learning rate schedule",
        ),
        (lambda self: torch.optim.Rprop(self.parameters()), "no options for Rprop"),
        (lambda self: torch.optim.Adam(self.parameters(), amsgrad=True), "no options for amsgrad"),
        (lambda self: self.trainer.optimizers, "cannot be called"),
        (lambda self: torch.optim.SGD([self.layer.bias], lr=0.1), "leaves out parameters"),
        (lambda self: None, "returns no optimizer"),
        (lambda self: [{"optimizer": sgd(self), "lr_scheduler": object()}], "rate schedule"),
        (lambda self: ((sgd(self),), (object(),)), "rate schedule"),
    ],
)
def test_other_optimizers_are_refused_when_the_model_is_built(configure, problem):
    """As hooks are: the contract's own optimizer would replace them in silence."""
    module = type("Own", (Module,), {"configure_optimizers": configure})
    with pytest.raises(BadTaskError, match=problem):
        task_of(module).build_model()


def test_a_module_without_optimizers_leaves_them_to_the_contract():
    def inherited(self):
        raise AssertionError("Lightning's own only warns that there is none")

    inherited.__module__ = "lightning.pytorch.core.module"
    task = task_of(type("Own", (Module,), {"configure_optimizers": inherited}))
    task.build_model()
    assert task.written_training() == {}


def test_rows_are_encoded_like_those_of_any_dataset():
    class Rows(LightningTask):
        kind = "multiclass"
        names = ("x", LABEL)

        def dataset(self, rows):
            return list(rows.select("x", "label").iter_rows())

        def module(self):
            return Module()

    task = Rows(NoOptions(), COLUMNS)
    rows = pl.DataFrame({"x": [0.5, 1.5], "label": [3, 0]})
    task.fit(rows.lazy())
    assert task.encode(rows)[LABEL].tolist() == [3, 0]
