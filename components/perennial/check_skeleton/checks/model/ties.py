"""Ties: weights that are copies of an embedding, where a shared parameter may be intended."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def copies_of_embeddings(
    model: nn.Module, named: Mapping[str, nn.Parameter]
) -> list[tuple[str, Tensor]]:
    """Return parameters that equal an embedding bit by bit: their name, the embedding.

    Args:
        model: The initial model.
        named: The parameters to compare with its embeddings.
    """
    embeddings = {
        id(each.weight): each.weight
        for each in model.modules()
        if isinstance(each, nn.Embedding) and float(each.weight.detach().std()) > 0
    }
    return [
        (name, embedding)
        for embedding in embeddings.values()
        for name, each in named.items()
        if each.data_ptr() != embedding.data_ptr() and torch.equal(each, embedding)
    ]
