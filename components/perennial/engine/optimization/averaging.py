"""Averaging: a moving average of the weights, on shards, in the place of PyTorch's.

`torch.optim.swa_utils` copies the model, which sharded models refuse.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from perennial.contracts.errors import PerennialError
from perennial.engine.config.optimization import Averaging
from perennial.engine.optimization.parameters import local, named_weights


class AveragedWeights:
    """The average of a model's trainable weights over the updates; begins at the weights it has.

    Frozen weights and buffers (running statistics) are those of the model itself.
    """

    def __init__(self, model: nn.Module, settings: Averaging) -> None:
        self._settings = settings
        named = named_weights(model)
        # By identity: a tied weight has several names and is averaged once.
        weights = {id(value): value for value in named.values() if value.requires_grad}
        averages = {key: value.detach().clone() for key, value in weights.items()}
        self._by_name = {
            name: averages[id(value)] for name, value in named.items() if id(value) in averages
        }
        self._pairs = [(averages[key], value) for key, value in weights.items()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after the update `step`, counted from 0."""
        averages = [local(average) for average, _ in self._pairs]
        weights = [local(weight) for _, weight in self._pairs]
        torch._foreach_lerp_(averages, weights, 1.0 - self.decay(step))

    def decay(self, step: int) -> float:
        """Return the share that an update keeps of the average: in closed form, without state."""
        if not self._settings.warm_up:
            return self._settings.decay
        return min(self._settings.decay, (1 + step) / (10 + step))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the model have the averaged weights meanwhile.

        They change places one by one, so that no third copy is needed, and back again, bit for
        bit.
        """
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by the names of the weights; loading in place restores them."""
        return dict(self._by_name)

    @torch.no_grad()
    def _exchange(self) -> None:
        for average, weight in self._pairs:
            kept = local(weight).clone()
            local(weight).copy_(local(average))
            local(average).copy_(kept)


def averages_to_load(weights: Mapping[str, Tensor], stored: Collection[str]) -> dict[str, Tensor]:
    """Return room for the averages in a checkpoint; other weights keep the model's values.

    Raises:
        PerennialError: it has none.
    """
    if not stored:
        raise PerennialError(
            "the checkpoint has no averaged weights",
            action="train with `averaging = {}` in [training], or load the weights themselves",
        )
    return {name: torch.empty_like(value) for name, value in weights.items() if name in stored}
