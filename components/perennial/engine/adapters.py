"""Adapters: low-rank matrices beside frozen weights; the only module that imports peft.

An adapter's own parameters are those of peft and those that are trained whole. Checkpoints and
exports hold these and the buffers; the rest, the base, is loaded by the digests of the initial
model. peft keeps the model's class and puts `base_layer` into the names of a target's weights.
"""

import importlib
import logging
import re
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch
from torch import nn

from perennial.contracts.adapter import FULL_BITS, Adapter
from perennial.contracts.errors import BadTaskError, DamagedModelError, PerennialError, join_names
from perennial.contracts.initial_model import InitialModel
from perennial.contracts.training import Challenger
from perennial.engine.config.training import TrainingSection
from perennial.engine.export import (
    load_model,
    read_tensors,
    require_exportable,
    weight_shards,
    write_weights,
)
from perennial.engine.initial_weights import find_random_values, load_initial_weights
from perennial.engine.low_bits import dequantize_linears, quantize_linears
from perennial.engine.optimization.parameters import named_weights
from perennial.engine.reproducibility import derived_seed, seeded_model
from perennial.engine.task import Task

logger = logging.getLogger(__name__)
KINDS = (nn.Linear, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)
OWN = re.compile(r"(^|\.)lora_")  # in the names of peft's parameters
SHOWN = 8  # names in a message


def build_starting_model(
    task: Task, training: TrainingSection, initial: InitialModel | None
) -> nn.Module:
    """Build the model that a training starts with: its weights, then its adapter.

    Raises:
        DamagedModelError: the stored weights are gone or altered.
        BadTaskError: they do not fit the model, a pattern does not, or its state cannot be stored.
        PerennialError: there is an adapter and nothing to adapt.
    """
    require_base(training.adapter, initial)
    model = seeded_model(task, training.seed)
    require_exportable(model)
    if initial is not None:
        changes = load_initial_weights(model, task, initial)
        logger.info("initial=%s %s", initial.origin.describe(), "; ".join(changes))
    adapt_model(model, task, training, initial)
    return model


def adapt_model(
    model: nn.Module, task: Task, training: TrainingSection, initial: InitialModel | None
) -> None:
    """Add the adapter, if there is one, in place.

    Raises:
        BadTaskError: a pattern does not fit, or weights that start at random would stay so.
    """
    random = find_random_values(model, task, initial) if initial and training.adapter else ()
    add_adapter(model, training)
    by_name = named_weights(model)
    kept = {name for name, each in by_name.items() if not each.requires_grad}
    lost = sorted(name for name in random if name in kept or name not in by_name)
    if lost:
        raise BadTaskError(
            f"{join_names(lost, SHOWN)} would stay at random values: the initial weights lack "
            "them, and training.adapter does not train them",
            action="add their names to training.adapter.whole, and leave them out of its targets",
        )


def require_base(adapter: Adapter | None, initial: InitialModel | None) -> None:
    """Check that an adapter has weights to adapt.

    Raises:
        PerennialError: it has none.
    """
    if adapter is not None and initial is None:
        raise PerennialError(
            "training.adapter has no weights to adapt: training would start at random",
            evidence="model.initial names none, or a champion that does not exist yet",
            action='set source = "safetensors" or "huggingface"  # in [model.initial]; or train '
            "the first version without [training.adapter]",
        )


def add_adapter(model: nn.Module, training: TrainingSection) -> None:
    """Put an adapter beside the modules that its patterns match, and freeze the rest, in place.

    Its product is zero until the first update. With `base_bits`, what is frozen is quantized as it
    is now: the base's weights have to be there. Nothing happens without `training.adapter`.

    Raises:
        BadTaskError: a pattern matches nothing, or a module that cannot have an adapter.
        PerennialError: peft is not installed, or nothing can be quantized.
    """
    adapter = training.adapter
    if adapter is None:
        return
    peft = import_peft()
    targets = find_targets(model, adapter)
    whole = _find_whole(model, adapter, targets)
    settings = peft.LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        # As a text it is matched against the whole name; a list would match its ends.
        target_modules="|".join(map(re.escape, targets)),
    )
    # The generators are the caller's, and the model's first draws are its own.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fan_in_fan_out is set to False", UserWarning)
        torch.default_generator.manual_seed(derived_seed(training.seed, 1))
        # Not `get_peft_model`, which wraps the model: `blocks` and plans of a task need its own
        # class.
        peft.inject_adapter_in_model(settings, model)
    for parameter in whole:
        parameter.requires_grad_(True)
    if adapter.base_bits < FULL_BITS:
        quantize_linears(model, adapter.base_bits)


def import_peft() -> ModuleType:
    """Return peft.

    Raises:
        PerennialError: it is not installed.
    """
    try:
        # Here, because it takes seconds and belongs to an extra.
        return importlib.import_module("peft")
    except ImportError as error:
        raise PerennialError(
            "training.adapter needs peft, which cannot be imported",
            evidence=str(error),
            action="run `pip install 'perennial[adapters]'`, also in the trainer's image",
        ) from error


def find_targets(model: nn.Module, adapter: Adapter) -> list[str]:
    """Return the names of the modules that get an adapter.

    Raises:
        BadTaskError: a pattern matches none, or one whose weights are shared with another module.
    """
    kinds = (*KINDS, importlib.import_module("transformers.pytorch_utils").Conv1D)
    able = {name: each for name, each in model.named_modules() if name and isinstance(each, kinds)}
    found: dict[str, nn.Module] = {}
    for pattern in adapter.targets:
        matched = {name: each for name, each in able.items() if fnmatchcase(name, pattern)}
        if not matched:
            raise BadTaskError(
                f"training.adapter.targets: {pattern!r} matches no module that can have an adapter",
                evidence=f"those that can are: {join_names(able, SHOWN)}",
                action="correct the pattern (`*` stands for any text), or remove it",
            )
        found |= matched
    names: dict[int, list[str]] = {}
    for name, value in named_weights(model).items():
        names.setdefault(id(value), []).append(name)
    for name, module in found.items():
        for parameter in module.parameters(recurse=False):
            if len(names[id(parameter)]) > 1:
                raise BadTaskError(
                    f"training.adapter.targets: {name} shares its weights with another module, "
                    "which the adapter would not reach",
                    evidence=f"one tensor has the names {join_names(names[id(parameter)], SHOWN)}",
                    action="leave it out of the patterns, or train it in training.adapter.whole",
                )
    return list(found)


def _find_whole(model: nn.Module, adapter: Adapter, targets: Sequence[str]) -> list[nn.Parameter]:
    """Return the parameters that are trained as they are, looked up before their names change."""
    weights, found = named_weights(model), dict[str, nn.Parameter]()
    for pattern in adapter.whole:
        matched = {name: each for name, each in weights.items() if fnmatchcase(name, pattern)}
        both = [name for name in matched if name.rpartition(".")[0] in targets]
        if not matched or both:
            raise BadTaskError(
                f"training.adapter.whole: {pattern!r} matches "
                + (f"{both[0]}, which has an adapter" if both else "no parameter"),
                evidence=f"some names are: {join_names(weights, SHOWN)}",
                action="train each module either whole or by an adapter"
                if both
                else "correct the pattern (`*` stands for any text), or remove it",
            )
        found |= matched
    return list(found.values())


def base_names(model: nn.Module, adapter: Adapter | None) -> set[str]:
    """Return the weights that the adapter leaves as they are: its files lack them."""
    if adapter is None:
        return set()
    return {
        name
        for name in named_weights(model)
        if not is_own(name) and not any(fnmatchcase(name, each) for each in adapter.whole)
    }


def is_own(name: str) -> bool:
    """Whether a parameter is one of an adapter's matrices."""
    return OWN.search(name) is not None


def merge_layer(layer: nn.Module) -> None:
    """Add the product of one of peft's layers to its weights; refuse values that are not finite."""
    cast("Any", layer).merge(safe_merge=True)


def merge_adapter(model: nn.Module, merge: Callable[[nn.Module], None] = merge_layer) -> None:
    """Add each product to the weights that it is for, and remove the adapter, in place.

    Weights of few bits become float32 before: rounding the sum would give another model.
    Of a sharded model, `merge` adds a layer's product to the shards.
    """
    dequantize_linears(model)
    layer = import_peft().tuners.tuners_utils.BaseTunerLayer
    for name, module in list(model.named_modules()):
        if isinstance(module, layer):
            merge(module)
            above, _, own = name.rpartition(".")
            setattr(model.get_submodule(above), own, module.get_base_layer())


def write_merged(folder: Path, target: Path) -> tuple[Path, str]:
    """Store the sum of an exported adapter and its base; return where, and its SHA-256."""
    _, model = load_model(folder)
    merge_adapter(model)
    return target, write_weights(model, target)


def build_adapted_model(task: Task, initial: InitialModel | None, adapter: Adapter) -> nn.Module:
    """Build a model with the base's weights, and room for those of the adapter.

    Raises:
        DamagedModelError: the base is gone or altered.
        BadTaskError: the base does not fit the task's model.
    """
    return build_starting_model(task, TrainingSection(adapter=adapter), initial)


def unmerged_adapter(challenger: Challenger, folder: Path) -> Adapter | None:
    """Return the adapter of an export that lacks its base; None if the export has all weights.

    Raises:
        DamagedModelError: nothing names the base.
    """
    adapter = challenger.adapter
    if adapter is None or adapter.merge:
        return None
    if challenger.base is None:
        raise DamagedModelError(
            f"{folder / Challenger.file_name} names no base for its adapter",
            action="restore the artifact from the store, or train again",
        )
    return adapter


def load_adapted_model(task: Task, challenger: Challenger, folder: Path) -> nn.Module:
    """Load the model of an exported adapter, with its base from the store.

    Raises:
        DamagedModelError: the base is gone or altered, or nothing names it.
        RuntimeError: the adapter's weights are not those of this model.
    """
    adapter = cast("Adapter", unmerged_adapter(challenger, folder))
    model = build_adapted_model(task, challenger.base, adapter)
    own = model.state_dict().keys() - base_names(model, adapter)
    stored = {
        name: value for file in weight_shards(folder) for name, value in read_tensors(file).items()
    }
    if differing := own ^ stored.keys():
        raise RuntimeError(f"names differ: {sorted(differing)[:5]}")
    model.load_state_dict(stored, strict=False)
    return model
