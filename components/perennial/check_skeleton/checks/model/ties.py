"""Ties: which weights are copies of an embedding, where one parameter may have been meant?"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def copies_of_embeddings(
    model: nn.Module, named: Mapping[str, nn.Parameter]
) -> list[tuple[str, Tensor]]:
    """Parameters that equal an embedding bit by bit and lie elsewhere: their name, the embedding.

    Args:
        model: As it was built.
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
