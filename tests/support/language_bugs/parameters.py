"""Parameters that do not learn, or cannot."""

import torch
from torch import nn

from language_bugs.building import (
    GPT2,
    Around,
    Rebuilt,
    language,
)

# Parameters


@language("parameter_gradients", "fine-tuning")
class EmbeddingFrozen(Rebuilt):
    """the token embedding is frozen"""

    def changed(self, model):
        model.embedding.requires_grad_(False)
        return model


@language("parameter_gradients", "cut off by detach", options=GPT2)
class EmbeddingDetached(Rebuilt):
    """the embedded tokens are detached from the graph"""

    def changed(self, model):
        model.embedding = Around(model.embedding, after=torch.Tensor.detach)
        return model


@language("parameter_gradients", "tie", outcome="warned", options={"tie_embeddings": True})
class TieBroken(Rebuilt):
    """the tied output matrix is a copy of the embedding, not the embedding"""

    def changed(self, model):
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())
        return model


@language("parameter_gradients", "zero weights on both sides")
class ZeroInit(Rebuilt):
    """all weights start at zero"""

    def changed(self, model):
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        return model


@language("parameter_gradients", "not among model.parameters|ModuleList")
class BlocksInAList(Rebuilt):
    """the blocks are kept in a Python list"""

    def changed(self, model):
        blocks = list(model.blocks)
        del model.blocks
        object.__setattr__(model, "blocks", blocks)
        return model


@language(
    "overfit_one_batch", "parameters get a gradient",
    settings={"overfit_steps": 25, "learning_rates": (1e-2,)},
)  # fmt: skip
class TokensMerged(Rebuilt):
    """token ids are divided before they are embedded, so that many look alike"""

    def changed(self, model):
        model.embedding = Around(model.embedding, before=lambda tokens: tokens // 128)
        return model


class AdditionsAlone(nn.Module):
    """A block that returns what it should add."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, stream):
        return self.block(stream) - stream


@language(
    "overfit_one_batch", "parameters get a gradient",
    settings={"overfit_steps": 25, "learning_rates": (1e-2,)},
)  # fmt: skip
class NoResiduals(Rebuilt):
    """blocks return what they add to the stream, without the stream"""

    def changed(self, model):
        model.blocks = nn.ModuleList(AdditionsAlone(block) for block in model.blocks)
        return model
