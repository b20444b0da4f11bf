"""What planted bugs of language models are built from."""

import torch
from torch import nn
from torch.nn import functional

from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.columns.tokenization import IGNORED
from perennial.tasks.decoder import rotate, rotation
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel
from planted import Bug, planted

BUGS: list[Bug] = []
GPT2 = {"variant": "gpt2"}
HF_GPT2 = {
    "model_type": "gpt2", "config": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 24},
    "context_length": 24,
}  # fmt: skip
HF_BERT = {
    "model_type": "bert", "context_length": 24,
    "config": {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 24,
    },
}  # fmt: skip


def language(check, hint, **how):
    """A bug on documents."""
    return planted(BUGS, check, hint, **{"material": "documents", **how})


class Rebuilt(CausalLanguageModel):
    """Changes the reference decoder after it is built."""

    def build_model(self):
        return self.changed(super().build_model())


class Core(nn.Module):
    """Attention with another mask; rotates as Llama does where asked to."""

    def __init__(self, mask, rotates):
        super().__init__()
        self.mask = mask
        self.rotates = rotates

    def forward(self, query, key, value):
        query, key = self.rotates(query), self.rotates(key)
        length = query.shape[1]
        heads = [part.transpose(1, 2) for part in (query, key, value)]
        mask = self.mask(torch.ones(length, length, dtype=torch.bool))
        return functional.scaled_dot_product_attention(*heads, attn_mask=mask).transpose(1, 2)


def as_llama(heads):
    return rotate(heads, *rotation(heads.shape[1], heads.shape[3], heads.device))


class Masked(Rebuilt):
    """Attends under `mask`."""

    mask = staticmethod(torch.tril)

    def changed(self, model):
        for block in model.blocks:
            rotates = as_llama if block.attention.core.rotates else lambda heads: heads
            block.attention.core = Core(self.mask, rotates)
        return model


class Around(nn.Module):
    """A module whose inputs or outputs are changed."""

    def __init__(self, module, before=None, after=None):
        super().__init__()
        self.module = module
        self.before = before or (lambda value: value)
        self.after = after or (lambda value: value)

    def forward(self, value, *others):
        return self.after(self.module(self.before(value), *others))


class Relabelled(CausalLanguageModel):
    """Other labels at the places where labels count; weights follow."""

    def encode(self, rows):
        batch = super().encode(rows)
        labels = self.relabelled(batch[TOKENS], batch[LABEL])
        weights = (labels != IGNORED).sum(1).float()
        return {TOKENS: batch[TOKENS], LABEL: labels, WEIGHT: weights}
