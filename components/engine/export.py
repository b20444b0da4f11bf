"""Export: a trained model as one portable folder, and back."""

import hashlib
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from components.clients.object_store import sha256_of_file
from components.contracts.artifact import write_atomically
from components.contracts.errors import PerennialError
from components.contracts.training import Challenger
from components.engine.task import Task, load_task

WEIGHTS_FILE = "model.safetensors"


def write_weights(model: nn.Module, folder: Path) -> str:
    """Store a full (unsharded) model's parameters and buffers; returns their file's SHA-256."""
    # Cloned: tied weights share memory, which the format does not allow.
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, value in model.state_dict().items()
    }
    content = safetensors.torch.save(tensors)
    write_atomically(folder / WEIGHTS_FILE, content)
    return hashlib.sha256(content).hexdigest()


def load_model(folder: Path) -> tuple[Task, nn.Module]:
    """The task with its fitted state, and the model in evaluation mode.

    Raises:
        PerennialError: the weights are damaged or do not fit the task's model.
        BadTaskError: the task's code is gone or refuses its options.
    """
    challenger = Challenger.read(folder)
    weights = folder / WEIGHTS_FILE
    if not weights.is_file() or sha256_of_file(weights) != challenger.weights_sha256:
        raise PerennialError(
            f"the weights in {weights} are not those that were exported",
            evidence=f"expected SHA-256 {challenger.weights_sha256}",
            action="restore the artifact from the store, or train again",
        )
    task = load_task(challenger.task, challenger.options, challenger.columns)
    task.load_state(challenger.task_state)
    model = task.build_model()
    try:
        model.load_state_dict(safetensors.torch.load_file(weights))
    except RuntimeError as error:
        raise PerennialError(
            f"the weights in {weights} do not fit {challenger.task}",
            evidence=str(error).splitlines()[0],
            action="the task's code changed since; check out the commit in the model's lineage",
        ) from error
    return task, model.eval()
