"""Exported adapters of a linear model, whose base is in the environment's store."""

import os
from pathlib import Path

import torch

from perennial.contracts.adapter import Adapter
from perennial.contracts.environment import STORE_URI
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.adapters import base_names, build_adapted_model, merge_adapter
from perennial.engine.export import write_weights
from perennial.engine.serving.servable import make_servable
from small_models import USELESS, linear_model, write_challenger
from stored_weights import store_weights

ADAPTER = Adapter(targets=("output",), rank=1, alpha=1.0)


def write_adapter(
    folder: Path,
    snapshot: Snapshot,
    weights: tuple[float, float],
    fingerprint: str = "training",
    adapter: Adapter = ADAPTER,
) -> Challenger:
    """An exported adapter of a useless base; together they have the given weights."""
    task, base = linear_model(snapshot, USELESS)
    initial = store_weights(Path(os.environ[STORE_URI]), base.state_dict())
    _, wanted = linear_model(snapshot, weights)
    model = build_adapted_model(task, initial, adapter)
    with torch.no_grad():
        model.output.lora_A["default"].weight.copy_(wanted.output.weight - base.output.weight)
        model.output.lora_B["default"].weight.fill_(1.0)
    left_out = base_names(model, adapter)
    if adapter.merge:
        merge_adapter(model)
        left_out = set()
    plain = write_challenger(folder, snapshot, weights, fingerprint, initial=initial)
    changes = {"adapter": adapter, "weights_sha256": write_weights(model, folder, left_out)}
    made = plain.model_copy(update=changes)
    made.write(folder)
    make_servable(folder, Dataset(snapshot))
    return made
