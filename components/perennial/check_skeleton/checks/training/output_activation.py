"""Judge the activations behind a model's last layer: a short training leaves them out."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from perennial.check_skeleton.baselines import z_score
from perennial.check_skeleton.models import run_updates, shuffle_batches, simplify
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Floats, Subject, select_head
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import inputs_of

# Not those that turn outputs into rates or shares, without which losses reject them.
ACTIVATIONS = frozenset(
    {"relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "mish", "hardswish"}
    | {"tanh", "tanh_", "hardtanh", "softsign", "sigmoid", "sigmoid_", "hardsigmoid"}
)
# Of the loss without them. In healthy tasks a sigmoid on an autoencoder's pixels has 1.2 after 60
# updates, and one on ordered stars 1.4; a ReLU on changes that may be negative has 2.1.
LEAST_RATIO, CLEAR_ERRORS = 1.75, 5.0


def judge_output_activation(judge: Judge, subject: Subject, steps: int) -> CheckResult | None:
    """Judge an activation behind the last weights; None where there is none, or it does no harm.

    Bounds of outputs do not show it where more is computed from them, such as running sums.
    """
    left_out = find_output_activations(subject)
    other = subject.training.model_copy(update={"seed": subject.seed + 1})
    shown = ""
    for each in (subject, replace(subject, training=other)) if left_out else ():
        try:
            without, having = (train_losses(each, steps, out) for out in (left_out, range(0)))
        except Exception:  # the loss may reject outputs that the activation rules out
            return None
        least, found = float(without.mean()), float(having.mean())
        if not 0 < LEAST_RATIO * least < found or z_score(having - without) < CLEAR_ERRORS:
            return None
        shown = shown or f"{found:.4g} with the activation behind the last layer, {least:.4g}"
    if not shown:
        return None
    return judge.failed(
        f"validation loss {shown} without it, after {steps} updates; under another seed, too",
        hint="the activation rules out outputs that the labels need, as a ReLU those below zero: "
        "return the last layer's output as it is",
    )


def train_losses(subject: Subject, steps: int, left_out: range) -> Floats:
    """Return the validation losses after a short training without some activations."""
    task, model = subject.task, simplify(subject.build_model())
    model.forward = partial(_run, model.forward, left_out)
    batches = shuffle_batches(subject, subject.train, steps)
    for _ in run_updates(task, model, batches, subject.settings.learning_rates[0]):
        pass
    return score_in_parts(task, model, subject.validation).losses


class ForwardPass(TorchFunctionMode):
    """Numbers the activations of a forward pass, and leaves some of them out.

    Args:
        left_out: Their numbers, from 0.
    """

    def __init__(self, left_out: Iterable[int] = ()) -> None:
        super().__init__()
        self.left_out = frozenset(left_out)
        self.count = 0  # of the activations so far
        self.before_weights = 0  # of them, those before the last operation with weights

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if getattr(func, "__name__", "") in ACTIVATIONS and args:
            number, self.count = self.count, self.count + 1
            if number in self.left_out:
                return args[0]
        elif _has_weights((*args, *(kwargs or {}).values())):
            self.before_weights = self.count
        return func(*args, **(kwargs or {}))


def _has_weights(values: Iterable[object]) -> bool:
    """Whether one of an operation's arguments is a matrix of weights, or a list with one."""
    return any(
        (isinstance(each, nn.Parameter) and each.ndim > 1)
        or (isinstance(each, list | tuple) and _has_weights(each))
        for each in values
    )


def find_output_activations(subject: Subject) -> range:
    """Return the numbers of the activations behind the last weights, in a forward pass."""
    batch = select_head(subject.train, 2 * subject.task.scored_together)
    seen = ForwardPass()
    with torch.no_grad(), seen:
        simplify(subject.build_model())(**inputs_of(batch))
    return range(seen.before_weights, seen.count)


def _run(forward: Callable[..., Tensor], left_out: range, **inputs: Tensor) -> Tensor:
    with ForwardPass(left_out):
        return forward(**inputs)
