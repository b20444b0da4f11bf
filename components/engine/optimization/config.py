"""The knobs of an update: optimizer, schedule, clipping, averaged weights."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from components.contracts.section import Section

Share = Annotated[float, Field(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Field(gt=0.0, le=1.0)]
LearningRate = Annotated[float, Field(gt=0.0, lt=10.0)]


class AdamW(Section):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    learning_rate: LearningRate = 3e-4
    """Peak step size. The first knob to tune: try thirds and triples. Lower it when the loss
    jumps, raise it when the loss still falls at the end."""
    weight_decay: Share = 0.01
    """Pull towards zero on matrices; biases, norms and embeddings are exempt. Raise it when the
    validation loss rises while the training loss falls."""
    betas: tuple[Share, Share] = (0.9, 0.999)
    """Memory of the gradient's mean and square. Lower the second to 0.95 for long sequences."""


class Sgd(Section):
    """Gradient descent with Nesterov momentum."""

    name: Literal["sgd"]
    learning_rate: LearningRate = 0.1
    """Peak step size; needs tuning with every change of the batch size."""
    weight_decay: Share = 0.0
    """Pull towards zero on matrices; biases, norms and embeddings are exempt."""
    momentum: Share = 0.9
    """Memory of the gradient; 0 turns momentum off."""


def _optimizer_name(value: object) -> str:
    """The optimizer that a table or a section describes; AdamW unless it says otherwise."""
    if isinstance(value, dict):
        return str(value.get("name", "adamw"))
    return str(getattr(value, "name", ""))


Optimizer: TypeAlias = Annotated[
    Annotated[AdamW, Tag("adamw")] | Annotated[Sgd, Tag("sgd")], Discriminator(_optimizer_name)
]


class Schedule(Section):
    """The learning rate as a share of its peak, a closed form in the step."""

    shape: Literal["constant", "linear", "cosine"] = "cosine"
    """How it falls to zero after the warm-up. Choose `constant` to see, without committing to a
    budget, how long training keeps paying."""
    warmup_fraction: Share = 0.05
    """Share of the steps that climb linearly to the peak. Raise it when the first steps diverge."""


class Clipping(Section):
    """What happens to gradients that are too long."""

    max_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Longer gradients are scaled down to this length; None turns it off. Set it near the 90th
    percentile of the reported norms: clipping should be rare."""


class Averaging(Section):
    """An exponential moving average of the weights, evaluated and saved beside them."""

    decay: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.999
    """Share of the average that an update keeps. Its memory is 1 / (1 - decay) updates; choose a
    tenth of the budget or less."""
