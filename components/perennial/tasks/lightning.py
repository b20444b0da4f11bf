"""Lightning task: base of tasks whose model and loss a `LightningModule` has.

The engine replaces the `Trainer` and refuses what it cannot follow: docs/adapters/lightning.md.
The package `lightning` is not imported: any module with `training_step` will do.
"""

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, cast

import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.contracts.section import Section
from perennial.engine.task import LABEL, WEIGHT, Batch, inputs_of
from perennial.tasks.dataset import DatasetTask

REDUCED = frozenset({
    functional.cross_entropy, functional.nll_loss, functional.mse_loss, functional.l1_loss,
    functional.smooth_l1_loss, functional.huber_loss, functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
})  # fmt: skip
HOOKS = (
    "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad",
    "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "backward",
    "on_train_batch_start", "on_train_batch_end", "on_train_epoch_start", "on_train_epoch_end",
    "on_fit_start", "on_train_start",
    "on_before_batch_transfer", "on_after_batch_transfer", "transfer_batch_to_device",
    "lr_scheduler_step", "manual_backward", "configure_model",
)  # fmt: skip
"""Methods that take part in an update; the engine calls none of them."""
COUNTERS = ("global_step", "current_epoch")
LATER = 997  # prime, so that it is another remainder than 0 of whatever a step divides it by
LIBRARIES = ("lightning.", "pytorch_lightning.", "torch.")
Binding = Callable[..., dict[str, object]]
"""Arguments of `forward` → what each of its parameters gets."""


class LightningTask(DatasetTask):
    """Task with the model and the `training_step` of a `LightningModule`.

    The step's loss must be a mean over the examples, of `self(...)` for the batch's inputs.
    """

    _is_compared = False

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self._steps = dict[torch.device, tuple[nn.Module, Binding]]()

    @abstractmethod
    def module(self) -> nn.Module:
        """Return a new `LightningModule`."""

    def build_model(self) -> nn.Module:
        """Build the module.

        Raises:
            BadTaskError: it has hooks that the engine would not call, or optimizers or schedules
                that `[training]` has no options for.
        """
        module = self.module()
        refuse_hooks(module)
        if _has_optimizers(module):
            training_options(module)
        return module

    def written_training(self) -> dict[str, JsonValue]:
        """Return the `[training]` options that the module's `configure_optimizers` stands for."""
        module = self.module()
        return training_options(module) if _has_optimizers(module) else {}

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss of `training_step` for each example, shape [B].

        Raises:
            BadTaskError: the step's loss is not the mean over the examples of a loss of `output`,
                or `output` is not of the inputs that it gives to `self(...)`.
        """
        if output.device not in self._steps:
            # Building the module draws its weights, which must not move the training's random
            # numbers. Each device has its own: what once had no values never gets them back.
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                step = _without_weights(self.module()).to(output.device)
            signature = inspect.signature(partial(type(step).forward, step))
            self._steps[output.device] = step, partial(_bind, signature)
        step, bind = self._steps[output.device]
        # The engine weighs the examples: a step that did as well would square their weights.
        counted = {**batch, WEIGHT: torch.ones_like(batch[WEIGHT])} if WEIGHT in batch else batch
        given = tuple(counted[name] for name in self.names if name in batch)
        # Set on the instance, where `self(...)` finds it before the `forward` of the class.
        vars(step)["forward"] = partial(_stand_in, output, bind, bind(**inputs_of(batch)))
        with PerExample(len(batch[LABEL])):
            found = cast("Any", step).training_step(given, 0)
        loss = found["loss"] if isinstance(found, Mapping) else found
        if not isinstance(loss, Tensor) or loss.shape != (len(batch[LABEL]),):
            shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise BadTaskError(
                "training_step does not return a mean over the examples",
                evidence=f"per example, its loss is {shape}, not [{len(batch[LABEL])}]",
                action="compute it by torch.nn.functional or by .mean(), or override `losses`",
            )
        # Only once, because it computes the loss a second time; tensors without values have none,
        # and that of one example is its mean.
        if not (self._is_compared or loss.is_meta or len(loss) < 2):
            self._compare(step, given, loss)
            self._is_compared = True
        return loss

    def _compare(self, step: nn.Module, given: tuple[Tensor, ...], losses: Tensor) -> None:
        """Refuse a step whose own loss is not the mean of the losses of the examples."""
        mean = losses.detach().double().mean()
        whole = self._compute_whole(step, given, 0)
        if not torch.allclose(whole, mean, 1e-4, equal_nan=True):
            raise BadTaskError(
                "training_step's loss is not the mean of the losses of the examples",
                evidence=f"it is {float(whole):.6g}, their mean {float(mean):.6g}",
                action="a root, a weight or `ignore_index` of a whole batch has no value for one "
                "example: return the weight of each from `encode`, or override `losses`",
            )
        later = copy.copy(step)
        later.__class__ = type(type(step).__name__, (type(step),), dict.fromkeys(COUNTERS, LATER))
        try:
            is_alike = torch.allclose(
                self._compute_whole(later, given, LATER), whole, equal_nan=True
            )
        except AttributeError:  # what a step then shows may need the logger of a Trainer
            return
        if not is_alike:
            raise BadTaskError(
                "training_step's loss changes as the training goes on",
                evidence=f"it is another with batch_idx, {' and '.join(COUNTERS)} = {LATER}",
                action="leave them out of the loss: the engine computes it as at the first step",
            )

    def _compute_whole(self, step: nn.Module, given: tuple[Tensor, ...], index: int) -> Tensor:
        """Return the step's own loss of a batch."""
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = cast("Any", step).training_step(given, index)
        return cast("Tensor", found["loss"] if isinstance(found, Mapping) else found).double()


def _bind(signature: inspect.Signature, /, *args: object, **kwargs: object) -> dict[str, object]:
    """Return what each parameter of `forward` gets in a call, by its name; of tensors which."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    kinds, found = signature.parameters, dict[str, object]()
    for name, value in bound.arguments.items():
        is_open = kinds[name].kind is inspect.Parameter.VAR_KEYWORD
        found |= value if is_open else {name: value}
    return {
        name: ("tensor", id(value)) if isinstance(value, Tensor) else value
        for name, value in found.items()
    }


def _stand_in(
    output: Tensor,
    bind: Binding,
    computed: Mapping[str, object],
    /,
    *args: object,
    **kwargs: object,
) -> Tensor:
    """Return the model's output, if it is asked for just what the engine computed it of."""
    if bind(*args, **kwargs) != computed:
        raise BadTaskError(
            "training_step changes the inputs before self(...)",
            evidence="the engine computes self(...) of the batch's own inputs, each for the "
            "argument of its name, once",
            action="move the change into forward, or into `encode` or `augment` of the task",
        )
    return output


class PerExample(TorchFunctionMode):
    """Computes means over the examples of a batch as the values of each example, shape [B]."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self._examples = examples

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Call a function of torch, without its reduction."""
        options = dict(kwargs or {})
        if func in REDUCED and options.get("reduction", "mean") == "mean":
            if options.get("weight") is not None:
                raise BadTaskError(
                    "training_step weighs the classes in its loss",
                    evidence=f"{func.__name__} has weight = {options['weight'].tolist()}",
                    action="return the weight of each example as `weight` from `encode`",
                )
            return self._mean(func(*args, **{**options, "reduction": "none"}))
        is_mean = func in (torch.mean, Tensor.mean) and len(args) == 1 and not options
        if is_mean and args[0].ndim and len(args[0]) == self._examples:
            return self._mean(args[0])
        return func(*args, **options)

    def _mean(self, losses: Tensor) -> Tensor:
        return losses.flatten(1).mean(dim=1) if losses.ndim > 1 else losses


def refuse_hooks(module: nn.Module) -> None:
    """Refuse a module whose training is more than its `training_step`.

    Raises:
        BadTaskError: it optimizes by itself or overrides hooks; each is named.
    """
    # Overrides only: the class of the library has all of these methods.
    own = [
        name
        for name in HOOKS
        if (method := getattr(type(module), name, None)) is not None
        and not method.__module__.startswith(LIBRARIES)
    ]
    if getattr(module, "automatic_optimization", True) is False:
        own.append("automatic_optimization = False")
    if own:
        raise BadTaskError(
            f"the engine does not call {', '.join(own)} of {type(module).__name__}",
            evidence="it replaces the Trainer: only forward and training_step are used",
            action="remove them; clipping, schedules and averages are options of [training]",
        )


def _has_optimizers(module: nn.Module) -> bool:
    method = getattr(type(module), "configure_optimizers", None)
    return method is not None and not method.__module__.startswith(LIBRARIES)


def training_options(module: nn.Module) -> dict[str, JsonValue]:
    """Return the `[training]` options that stand for `configure_optimizers`.

    Raises:
        BadTaskError: it cannot be called without a Trainer, an optimizer or a schedule has no such
            options, or there are several.
    """
    try:
        found = cast("Any", module).configure_optimizers()
    except Exception as error:  # as where it asks the Trainer for the number of steps
        raise BadTaskError(
            f"configure_optimizers of {type(module).__name__} cannot be called",
            evidence=f"without a Trainer: {type(error).__name__}: {error}",
            action="remove it, and write its optimizer and schedule as options of [training]",
        ) from error
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    optimizers = found.get("optimizer") if isinstance(found, Mapping) else found
    schedules = found.get("lr_scheduler", []) if isinstance(found, Mapping) else []
    match optimizers:
        case [[*own], plans]:
            optimizers, schedules = own, plans
    optimizers = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    if not optimizers or not all(isinstance(each, torch.optim.Optimizer) for each in optimizers):
        raise BadTaskError(
            f"configure_optimizers of {type(module).__name__} returns no optimizer",
            evidence=f"it returns {str(found)[:200]}",
            action="remove it, and write the optimizer as options of [training]",
        )
    if len(optimizers) != 1 or len(optimizers[0].param_groups) != 1:
        raise BadTaskError(
            "configure_optimizers returns several optimizers or groups of parameters",
            action="keep one group; no_decay of [training.optimizer] exempts parameters",
        )
    if schedules:
        raise BadTaskError(
            "configure_optimizers returns a learning rate schedule",
            action="remove it, and choose a shape in [training.schedule]",
        )
    moved = {id(each) for each in optimizers[0].param_groups[0]["params"]}
    names = [n for n, p in module.named_parameters() if p.requires_grad and id(p) not in moved]
    if names:
        raise BadTaskError(
            "configure_optimizers leaves out parameters that the engine would train",
            evidence=", ".join([*names[:5], *(["…"] if names[5:] else [])]),
            action="freeze them in the module's __init__: requires_grad_(False)",
        )
    return {
        "optimizer": _optimizer_options(optimizers[0]),
        "schedule": {"shape": "constant", "warmup_fraction": 0.0},
        "clipping": {"method": "none"},
    }


def _optimizer_options(optimizer: torch.optim.Optimizer) -> dict[str, JsonValue]:
    group, kind = optimizer.param_groups[0], type(optimizer)
    if kind is torch.optim.SGD:
        more = {"name": "sgd", "momentum": group["momentum"], "nesterov": group["nesterov"]}
        changed = [name for name in ("dampening", "maximize") if group[name]]
    elif kind in (torch.optim.Adam, torch.optim.AdamW):
        name = "adamw" if group["decoupled_weight_decay"] else "adam"
        more = {"name": name, "betas": list(group["betas"])}
        changed = [name for name in ("amsgrad", "maximize") if group[name]]
        changed += ["eps"] if group["eps"] != 1e-8 else []
    else:
        more, changed = {}, [kind.__name__]
    if changed:
        raise BadTaskError(
            f"[training.optimizer] has no options for {', '.join(changed)}",
            evidence=f"configure_optimizers returns {kind.__name__}",
            action="use SGD, Adam or AdamW without it; docs/extending.md shows how to add one",
        )
    return {**more, "learning_rate": float(group["lr"]), "weight_decay": group["weight_decay"]}


class _Untrained(nn.Module):
    """Stands for a part with weights that `training_step` must reach through `self(...)` alone."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def forward(self, *_args: object, **_kwargs: object) -> Tensor:
        raise BadTaskError(
            f"training_step calls self.{self._name} directly",
            evidence="the engine computes self(...) once and gives training_step its result",
            action=f"move the call of self.{self._name} into forward",
        )

    def named_parameters(self, *_args: object, **_kwargs: object) -> NoReturn:
        _refuse_weights(f"self.{self._name}")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse_weights(f"self.{self._name}.{name}")


def _refuse_weights(what: str, *_args: object, **_kwargs: object) -> NoReturn:
    raise BadTaskError(
        f"training_step reads weights: {what}",
        evidence="it gets the result of self(...) and no weights, so that a penalty of them is 0",
        action="use weight_decay of [training.optimizer], or return the penalty from "
        "`auxiliary_losses` of the task",
    )


def _without_weights(module: nn.Module) -> nn.Module:
    """Return a copy with losses and metrics, but without parts that have weights, and `log`s."""
    step = copy.copy(module)
    parts = {
        name: _Untrained(name)
        if part is not None and any(True for _ in part.parameters())
        else part
        for name, part in module._modules.items()
    }
    vars(step).update(_modules=parts, _parameters={})
    vars(step)["named_parameters"] = partial(_refuse_weights, "self.parameters()")
    for name in ("log", "log_dict"):
        vars(step)[name] = lambda *_args, **_kwargs: None
    return step
