"""Decoder: the reference language model, as Llama or GPT-2 build it, dense or with experts.

`llama` normalises by root mean square, rotates queries and keys by position, and gates its
feed-forward layers (SwiGLU); `gpt2` takes layer normalisation, learned positions and GELU. Blocks
map a stream of shape [B, T, width] to another, so they can be sharded, compiled, checkpointed and
cut into pipeline stages one by one. Attention and experts are modules of their own, called with
plain tensors: the engine exchanges those between processes and the model does not notice.
"""

import math
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from perennial.contracts.section import Section
from perennial.engine.parallelism.experts import own_experts
from perennial.engine.task import ParallelPlan, TensorStyle

PositiveInt = Annotated[int, Field(ge=1)]
# GPT-2's, for matrices and embeddings.
INITIAL_STD = 0.02
# Above GPT-2's smallest width, the output matrix starts smaller, so that the logits' variance stays
# below 0.02² · 768 = 0.31 and the initial loss within 0.16 of ln(vocabulary).
WIDTH_OF_INITIAL_STD = 768
ROTATION_PERIOD = 10_000.0  # of the slowest pair of features, as in RoFormer and Llama 2


class DecoderOptions(Section):
    """Size and family of a decoder."""

    vocab_size: PositiveInt = 256
    """Number of token ids; the default is one for every byte."""
    context_length: PositiveInt = 256
    """Tokens of the longest sequence. `gpt2` learns that many positions."""
    layers: PositiveInt = 4
    """Number of blocks. Increase depth and width together: the width is most often 64 to 128 times
    the number of layers."""
    heads: PositiveInt = 4
    """Attention heads of each block; `width / heads` should be 64 or 128 on GPUs."""
    kv_heads: PositiveInt | None = None
    """Heads of keys and values, each shared by `heads / kv_heads` queries; None means `heads`.
    Lower it to save memory when the model generates."""
    width: PositiveInt = 128
    """Features of the residual stream."""
    ffn_multiplier: Annotated[float, Field(gt=0.0)] = 4.0
    """Width of the feed-forward layers, as a multiple of `width`. SwiGLU has three matrices instead
    of two and takes two thirds of it, so that both variants have as many parameters."""
    variant: Literal["llama", "gpt2"] = "llama"
    """Which of the two families the blocks follow."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout of embeddings, attention and each block's output. Raise it when the validation loss
    rises over repeated epochs."""
    experts: Annotated[int, Field(ge=0)] = 0
    """Experts (feed-forward networks) per block; 0 means a dense model."""
    experts_per_token: PositiveInt = 1
    """Experts that process each token; 1 is the cheapest, 2 trains more smoothly."""
    balance: Annotated[float, Field(ge=0.0)] = 0.01
    """Weight of the load-balancing loss of the experts (0.01 in Switch Transformer). Raise it when
    few experts get all tokens."""
    tie_embeddings: bool = False
    """Use the token embedding as output matrix as well. Saves memory in small models."""

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} does not divide width = {self.width}")
        if self.heads % self.groups:
            raise ValueError(f"kv_heads = {self.kv_heads} does not divide heads = {self.heads}")
        if self.variant == "llama" and self.width // self.heads % 2:
            raise ValueError("llama rotates pairs of features: width / heads must be even")
        if self.experts and self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token = {self.experts_per_token} exceeds experts = {self.experts}"
            )
        return self

    @property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def hidden(self) -> int:
        """Return the width of a feed-forward layer, a multiple of 8 for matrix kernels."""
        share = 2 / 3 if self.variant == "llama" else 1.0
        return max(8, round(self.ffn_multiplier * self.width * share / 8) * 8)


class Decoder(nn.Module):
    """A stack of blocks between an embedding and the logits of the next token."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.options = options
        self.embedding = Embedding(options)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = normalization(options)
        self.head = nn.Linear(options.width, options.vocab_size, bias=False)
        self._initialize()
        if options.tie_embeddings:
            self.head.weight = self.embedding.tokens.weight

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Logits [B, T, vocabulary] after each of the tokens [B, T]; positions [T] count from 0."""
        stream = self.embedding(tokens, positions)
        for block in self.blocks:
            stream = block(stream)
        logits: Tensor = self.head(self.norm(stream))
        return logits

    def balance_losses(self) -> Tensor | None:
        """Return how unequally the last pass used the experts, [B]; None without experts."""
        layers = [module for module in self.modules() if isinstance(module, MixtureOfExperts)]
        losses = [layer.balance_loss for layer in layers if layer.balance_loss is not None]
        if not losses or not self.options.balance:
            return None
        return torch.stack(losses).sum(0) * self.options.balance

    @torch.no_grad()
    def _initialize(self) -> None:
        """Draw normal weights, as GPT-2: those that add to the stream are smaller by depth."""
        additions = math.sqrt(2 * self.options.layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2:
                is_addition = name.endswith((".output.weight", ".down.weight", ".down"))
                parameter.normal_(0.0, INITIAL_STD / (additions if is_addition else 1.0))
            elif name.endswith("bias"):
                parameter.zero_()
        output = self.embedding.tokens if self.options.tie_embeddings else self.head
        output.weight.mul_(min(1.0, math.sqrt(WIDTH_OF_INITIAL_STD / self.options.width)))


class Embedding(nn.Module):
    """Token ids → the stream; `gpt2` adds where they stand."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab_size, options.width)
        self.positions = (
            nn.Embedding(options.context_length, options.width)
            if options.variant == "gpt2"
            else None
        )
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """Ids [B, T] → [B, T, width]."""
        stream = self.tokens(tokens)
        if self.positions is not None:
            if positions is None:
                positions = torch.arange(tokens.shape[1], device=tokens.device)
            stream = stream + self.positions(positions)
        dropped: Tensor = self.dropout(stream)
        return dropped


class Block(nn.Module):
    """Attention, then a feed-forward layer; each reads the normalised stream and adds to it."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.attention_norm = normalization(options)
        self.attention = Attention(options)
        self.feed_forward_norm = normalization(options)
        self.feed_forward = MixtureOfExperts(options) if options.experts else feed_forward(options)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """[B, T, width] → the same."""
        stream = stream + self.dropout(self.attention(self.attention_norm(stream)))
        added: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(stream)))
        return stream + added


class Attention(nn.Module):
    """Every token looks at itself and those before it."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.head_width = options.width // options.heads
        bias, grouped = options.variant == "gpt2", options.groups * self.head_width
        self.query = nn.Linear(options.width, options.width, bias=bias)
        self.key = nn.Linear(options.width, grouped, bias=bias)
        self.value = nn.Linear(options.width, grouped, bias=bias)
        self.core = AttentionCore(options)
        self.output = nn.Linear(options.width, options.width, bias=bias)

    def forward(self, stream: Tensor) -> Tensor:
        """[B, T, width] → the same."""
        projections = (self.query(stream), self.key(stream), self.value(stream))
        # -1: as many heads as this process holds.
        heads = [part.unflatten(-1, (-1, self.head_width)) for part in projections]
        output: Tensor = self.output(self.core(*heads).flatten(2))
        return output


class AttentionCore(nn.Module):
    """What needs whole sequences: rotation by position, and attention."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.rotates = options.variant == "llama"
        self.dropout = options.dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Queries [B, T, H, D], keys and values [B, T, K, D] → [B, T, H, D]."""
        if self.rotates:
            cosine, sine = rotation(query.shape[1], query.shape[3], query.device)
            query, key = rotate(query, cosine, sine), rotate(key, cosine, sine)
        attended = functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return attended.transpose(1, 2)


def rotation(length: int, head_width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of every position's angles, [T, 1, D/2].

    Computed again in float32 each time: a buffer would be sent between processes at each update.
    """
    exponents = torch.arange(0, head_width, 2, device=device, dtype=torch.float32) / head_width
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, ROTATION_PERIOD**-exponents)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Heads [B, T, H, D] with feature i and feature i + D/2 turned by the position's angle."""
    first, second = heads.float().chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).type_as(heads)


class GatedFeedForward(nn.Module):
    """SwiGLU: one projection decides how much of the other passes."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.gate = nn.Linear(options.width, options.hidden, bias=False)
        self.up = nn.Linear(options.width, options.hidden, bias=False)
        self.down = nn.Linear(options.hidden, options.width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """[B, T, width] → the same."""
        output: Tensor = self.down(functional.silu(self.gate(stream)) * self.up(stream))
        return output


class FeedForward(nn.Module):
    """GPT-2's: two matrices around GELU."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.up = nn.Linear(options.width, options.hidden)
        self.down = nn.Linear(options.hidden, options.width)

    def forward(self, stream: Tensor) -> Tensor:
        """[B, T, width] → the same."""
        output: Tensor = self.down(functional.gelu(self.up(stream), approximate="tanh"))
        return output


class MixtureOfExperts(nn.Module):
    """Sends each token through the few experts that its router likes most; none is dropped."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.num_chosen = options.experts_per_token
        self.router = nn.Linear(options.width, options.experts, bias=False)
        self.experts = Experts(options)
        self.mean = SequenceMean()
        self.balance_loss: Tensor | None = None

    def forward(self, stream: Tensor) -> Tensor:
        """[B, T, width] → the same; leaves `balance_loss` behind."""
        likes = self.router(stream).float().softmax(-1)
        shares, chosen = likes.topk(self.num_chosen, dim=-1)
        if self.num_chosen > 1:
            # With a single expert its share must stay: nothing else teaches the router.
            shares = shares / shares.sum(-1, keepdim=True)
        self.balance_loss = self._balance(likes, chosen) if self.training else None
        order = chosen.flatten().argsort(stable=True)
        experts = torch.arange(likes.shape[-1], device=chosen.device)
        counts = (chosen.flatten()[:, None] == experts).sum(0)
        # `chosen` is flattened with the choices of a token side by side: choice i is of token i
        # divided by their number.
        sent = stream.flatten(0, 1)[order // self.num_chosen]
        returned = self.experts(sent, counts)[order.argsort()].view(*chosen.shape, -1)
        weighted: Tensor = returned * shares[..., None].type_as(returned)
        return weighted.sum(2)

    def _balance(self, likes: Tensor, chosen: Tensor) -> Tensor:
        """Per example, 1 when all experts are equally busy (the sequence-wise loss of DeepSeek-V2).

        Within sequences, so that it does not depend on how a batch is divided.
        """
        num_experts = likes.shape[-1]
        is_chosen = functional.one_hot(chosen, num_experts).sum(2).type_as(likes)
        busy, liked = self.mean(is_chosen), self.mean(likes)
        products: Tensor = busy * liked
        return products.sum(-1) * num_experts / self.num_chosen


class SequenceMean(nn.Module):
    """A mean that is taken over whole sequences, wherever their parts are."""

    def forward(self, values: Tensor) -> Tensor:
        """[B, T, F] → [B, F]."""
        return values.mean(1)


class Experts(nn.Module):
    """Feed-forward networks side by side; the first dimension of each weight is the expert."""

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        into, out_of = (options.width, options.hidden), (options.hidden, options.width)
        self.gate = (
            nn.Parameter(torch.empty(options.experts, *into))
            if options.variant == "llama"
            else None
        )
        self.up = nn.Parameter(torch.empty(options.experts, *into))
        self.down = nn.Parameter(torch.empty(options.experts, *out_of))

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Tokens [N, width], sorted by expert, of which each expert has `counts` [experts]."""
        up, down = own_experts(self.up), own_experts(self.down)
        gate = None if self.gate is None else own_experts(self.gate)
        returned = []
        for index, part in enumerate(torch.split(tokens, counts.tolist())):
            hidden = part @ up[index]
            if gate is None:
                hidden = functional.gelu(hidden, approximate="tanh")
            else:
                hidden = functional.silu(part @ gate[index]) * hidden
            returned.append(hidden @ down[index])
        return torch.cat(returned)


def normalization(options: DecoderOptions) -> nn.Module:
    """Build the variant's normalization: by root mean square, or by mean and variance."""
    if options.variant == "llama":
        return nn.RMSNorm(options.width, eps=1e-5)  # Llama 2's
    return nn.LayerNorm(options.width, eps=1e-5)


def feed_forward(options: DecoderOptions) -> nn.Module:
    """Build the variant's feed-forward layer."""
    return GatedFeedForward(options) if options.variant == "llama" else FeedForward(options)


def decoder_plan(options: DecoderOptions, *, inputs: str = "tokens") -> ParallelPlan:
    """Return where a decoder may be cut; `inputs` are the token ids, [B, T], as is `label`."""
    styles: dict[str, TensorStyle] = {
        "embedding": "split",
        "embedding.tokens": "vocabulary",
        "blocks.*.attention_norm": "normalization",
        "blocks.*.attention": "whole",
        "blocks.*.attention.query": "columns",
        "blocks.*.attention.key": "columns",
        "blocks.*.attention.value": "columns",
        "blocks.*.attention.output": "rows",
        "blocks.*.feed_forward_norm": "normalization",
        "blocks.*.feed_forward": "repeated" if options.experts else "whole",
        "norm": "normalization",
        "head": "logits",
    }
    if not options.experts:
        styles["blocks.*.feed_forward.up"] = "columns"
        styles["blocks.*.feed_forward.down"] = "rows"
        if options.variant == "llama":
            styles["blocks.*.feed_forward.gate"] = "columns"
    return ParallelPlan(
        before=("embedding",),
        blocks="blocks",
        after=("norm", "head"),
        tensor=styles,
        divisible={"heads": options.heads, "kv_heads": options.groups},
        attention="blocks.*.attention.core",
        sequence={inputs: 1, "label": 1},
        positions="positions",
        sequence_means="blocks.*.feed_forward.mean" if options.experts else "",
        experts="blocks.*.feed_forward.experts" if options.experts else "",
    )
