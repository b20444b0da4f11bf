"""Stored weights: initial models in an object store of a test, as a run pins them."""

from pathlib import Path

from safetensors.torch import save_file

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.initial_model import FOLDER, InitialModel, Origin


def store_weights(store: Path, tensors: dict, source="safetensors", **fields) -> InitialModel:
    """Tensors in the format of safetensors, under their digest; `fields` of the initial model."""
    (store / FOLDER).mkdir(parents=True, exist_ok=True)
    file = store / FOLDER / "weights"
    # Clones, because the format refuses tied tensors.
    save_file({name: value.detach().clone() for name, value in tensors.items()}, file)
    digest = sha256_of_file(file)
    file.rename(file.with_name(f"{digest}.safetensors"))
    origin = Origin(source=source, uri="made by a test", files={"model.safetensors": digest})
    return InitialModel(origin=origin, store_uri=str(store), **fields)
