"""Attention: over which axis it mixes, how heads are split, whether its weights differ."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from perennial.check_skeleton.checks.model.pooling_axes import describe_other_axis
from perennial.check_skeleton.checks.model.sequences import find_tokens
from perennial.check_skeleton.free_outputs import probe
from perennial.check_skeleton.models import FunctionWatch, build_noisy_model, run_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, find_padding, once, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch

PROBED_ROWS = 16
SHORTEST = 4
# Weights of a softmax add up to 1 within rounding; what a mask behind it takes away is more.
ROUNDING = 1e-3
# A mask of -1e4 or lower leaves nothing of a weight; padding without a mask gets more.
MASKED = 1e-3
MASKED_SCORE = -1e3
# Equal weights differ by rounding only; noise on the weights changes them more.
EVEN = 1e-4
# Of the queries: those of empty texts may have no key at all.
FEW = 0.05
PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
WEIGHTS_BY_HEAD = {"need_weights": True, "average_attn_weights": False}
SOFTMAXES = (torch.softmax, Tensor.softmax, functional.softmax)
SHAPINGS = (torch.reshape, Tensor.reshape, Tensor.view, torch.flatten, Tensor.flatten)


@dataclass
class Observed:
    """The attention operations of a forward pass."""

    # Shape and axis of each, the axis counted from the end.
    softmaxes: list[tuple[tuple[int, ...], int]] = field(default_factory=list)
    # Weights over keys, [B, H, Q, K], as multiplied with the values.
    weights: list[Tensor] = field(default_factory=list)
    # Shapes before and after, and whether the tensor came from the heads.
    shapings: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = field(default_factory=list)
    # Shapes of the queries of fused attention.
    queries: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def lengths(self) -> set[int]:
        """Sequence lengths of self-attention."""
        squares = {
            shape[-1] for shape, _ in self.softmaxes if len(shape) > 2 and shape[-1] == shape[-2]
        }
        return squares | {shape[-2] for shape in self.queries}


class _Watch(FunctionWatch):
    """Records softmaxes, products with their weights, and changes of shape."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Observed()
        self._joined: list[Tensor] = []

    @override
    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: object
    ) -> None:
        if func is functional.multi_head_attention_forward:
            self._note_layer(func(*args, **{**given, **WEIGHTS_BY_HEAD})[1])
        if not isinstance(result, Tensor):
            return
        if func in SOFTMAXES:
            axis = given.get("dim", args[1] if len(args) > 1 else -1)
            if isinstance(axis, int):
                from_end = axis - result.ndim if axis >= 0 else axis
                self.seen.softmaxes.append((tuple(result.shape), from_end))
        elif func in PRODUCTS and isinstance(args[0], Tensor):
            self._note_product(args[0], result)
        elif func is torch.einsum and isinstance(args[0], str):
            self._note_sum(args[0].replace(" ", ""), args[1:], result)
        elif func is functional.scaled_dot_product_attention:
            self.seen.queries.append(tuple(args[0].shape))
            self._joined.append(result)
            self.seen.weights += _compute_fused_weights(*args, **given)
        elif func in SHAPINGS and isinstance(args[0], Tensor):
            is_joined = any(args[0] is each for each in self._joined)
            self.seen.shapings.append((tuple(args[0].shape), tuple(result.shape), is_joined))

    def _note_layer(self, weights: Tensor) -> None:
        """Record the weights of `nn.MultiheadAttention`, whose inner operations are hidden."""
        if weights.ndim == 4:
            self.seen.softmaxes.append((tuple(weights.shape), -1))
            self.seen.weights.append(weights.detach())

    def _note_sum(self, equation: str, operands: Sequence[object], result: Tensor) -> None:
        """Record weights of positions for each other by the letter that they are summed over."""
        taken, _, given = equation.partition("->")
        shapes = {each for each, _ in self.seen.softmaxes}
        for letters, operand in zip(taken.split(","), operands, strict=False):
            if not isinstance(operand, Tensor) or tuple(operand.shape) not in shapes:
                continue
            summed = [place for place, letter in enumerate(letters) if letter not in given]
            is_square = operand.ndim > 2 and operand.shape[-1] == operand.shape[-2]
            if is_square and len(summed) == 1 and summed[0] >= operand.ndim - 2 > 0:
                self._note_product(operand.movedim(summed[0], -1), result)

    def _note_product(self, weights: Tensor, result: Tensor) -> None:
        shape = tuple(weights.shape)
        is_known = shape in {each for each, _ in self.seen.softmaxes}
        if is_known and len(shape) > 2 and float(weights.min()) >= 0:
            self.seen.weights.append(weights.detach())
            self._joined.append(result)


def _compute_fused_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *args: object,
    is_causal: bool = False,
    scale: float | None = None,
    **others: object,
) -> list[Tensor]:
    """Return the weights of scaled_dot_product_attention; empty where heads share keys."""
    if query.shape[:-2] != key.shape[:-2]:
        return []
    scores = query @ key.transpose(-2, -1) * (scale or query.shape[-1] ** -0.5)
    mask = attn_mask
    if is_causal or True in args:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None:
        is_kept = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -math.inf) if is_kept else scores + mask
    return [scores.softmax(dim=-1).nan_to_num()]


def _choose_watched(subject: Subject) -> tuple[Batch, Tensor | None]:
    """Return a few examples, and whether each position is padding, [B, T]; None without padding.

    Half of them are the shortest, where there is padding: the first ones alone may all be long.
    """
    many = probe(subject)
    rows, tokens = torch.arange(len(next(iter(many.values())))), find_tokens(many)
    padding = None if tokens is None else find_padding(many[tokens])
    if tokens is None or padding is None:
        return select_rows(many, rows[:PROBED_ROWS]), None
    half = PROBED_ROWS // 2
    shortest = padding.content.argsort(stable=True)
    shortest = shortest[(padding.content[shortest] > 1) & (shortest >= half)]
    chosen = torch.cat([rows[:half], shortest[:half]])
    return select_rows(many, chosen), padding.covers(many[tokens].shape[1])[chosen]


@once
def observe_attention(subject: Subject) -> tuple[Observed, Batch]:
    """Return the attention of a pass over a few examples, and the examples."""
    batch, _ = _choose_watched(subject)
    with _Watch() as watch:
        run_model(build_noisy_model(subject), batch)
    return watch.seen, batch


@check(
    "attention",
    expects="weights over the keys that add up to 1, differ, and leave padding out; heads "
    "split and joined without moving numbers between positions",
    source="Attention Is All You Need, section 3.2; every softmax, product and change of shape "
    "of a pass is examined",
)
def check_attention(subject: Subject, judge: Judge) -> CheckResult:
    """Check that attention mixes positions by weights over the keys, separately in each head."""
    other, (found, batch) = describe_other_axis(subject), observe_attention(subject)
    if not found.lengths and not other:
        return judge.skipped("no attention between positions is found")
    tokens = find_tokens(batch)
    length = batch[tokens].shape[1] if tokens else 0
    return (
        _judge_axes(judge, found, len(next(iter(batch.values()))), length)
        or _judge_weights(judge, found)
        or _judge_padding(judge, subject)
        or _judge_pooling(judge, other)
        or judge.passed(f"{len(found.weights)} layers over {sorted(found.lengths)} positions")
    )


def _judge_pooling(judge: Judge, other: str) -> CheckResult | None:
    """Warn of pooling over another axis than the softmax's: gates over fields are made alike."""
    if not other:
        return None
    return judge.warned(
        other,
        hint="the softmax runs over the wrong dimension: let it run over the one that is summed. "
        "Correct for gates, as of the fields of each event, whose values are then added up",
    )


def _judge_axes(judge: Judge, found: Observed, rows: int, positions: int) -> CheckResult | None:
    """Judge the dimensions of softmaxes, and how heads are split and joined."""
    for shape in [*found.queries, *(shape for shape, _ in found.softmaxes)]:
        if len(shape) == 4 and shape[1] == positions and positions not in shape[2:]:
            return judge.failed(
                f"attention runs over dimension 2 of {list(shape)}, positions are dimension 1",
                hint="transpose(1, 2) first: attention takes [B, heads, T, width], otherwise "
                "heads attend to heads and no position to another",
            )
    for shape, axis in found.softmaxes:
        if len(shape) < 3 or shape[-1] != shape[-2]:
            continue
        is_batch = axis == -len(shape) and shape[0] in (rows, rows * shape[1])
        if is_batch or (len(shape) == 4 and shape[-1] >= SHORTEST and axis == -3):
            return judge.failed(
                f"a softmax over dimension {len(shape) + axis} of {list(shape)}: over the "
                f"{'batch' if is_batch else 'heads'}",
                hint="the softmax of attention runs over the keys, dim=-1",
            )
    for before, after, is_joined in found.shapings:
        for length in found.lengths:
            # [B, T, E] became [B, …, T, width] without exchanging dimensions.
            is_split = len(after) > 3 and before[:-1] == (after[0], length) == (rows, length)
            is_split = is_split and length not in (before[-1], after[1], after[-1])
            if is_split and after[2:-1].count(length) == 1:
                return judge.failed(
                    f"{list(before)} became {list(after)}: positions are split into heads",
                    hint="view or reshape to [B, T, heads, width], and then transpose(1, 2): "
                    "otherwise a head gets some whole tokens instead of a part of every token",
                )
            # [B, heads, T, width] became [B, T, heads * width] without exchanging dimensions.
            heads = before[1] if len(before) == 4 and before[2] == length else 1
            is_plain = heads not in (1, length) and after == (before[0], length, heads * before[-1])
            if is_joined and is_plain:
                return judge.failed(
                    f"{list(before)} became {list(after)}: heads are mixed with positions",
                    hint="transpose(1, 2) before reshape: [B, heads, T, width] must become "
                    "[B, T, heads * width]",
                )
    return None


def _judge_weights(judge: Judge, found: Observed) -> CheckResult | None:
    for number, weights in enumerate(found.weights, start=1):
        if weights.shape[-1] < SHORTEST:
            continue
        sums, others = weights.sum(dim=-1), weights.sum(dim=-2)
        is_wrong = (sums - 1).abs() > ROUNDING
        shown = f"{float(sums.min()):.2g} to {float(sums.max()):.2g}"
        if bool(is_wrong.any()) and float((others - 1).abs().max()) <= ROUNDING:
            return judge.failed(
                f"weights of layer {number} add up to 1 over the queries, to {shown} over the keys",
                hint="the softmax runs over the wrong dimension: over the keys, dim=-1",
            )
        if float((is_wrong & (sums > 0)).double().mean()) > FEW:
            return judge.warned(
                f"weights of layer {number} add up to {shown} over the keys",
                hint="a mask after the softmax removes weight: add it as -inf before; or the "
                "softmax runs over another dimension",
            )
        if _are_even(weights):
            return judge.warned(
                f"layer {number} gives all keys the same weight",
                hint="attention selects nothing: look for scores that are divided by too much, "
                "detached or made of zero queries and keys",
            )
    return None


def _are_even(weights: Tensor) -> bool:
    """Whether each query gives the same weight to all unmasked keys, of which it has several."""
    kept = torch.where(weights > MASKED / weights.shape[-1], weights, torch.nan)
    mean = kept.nanmean(dim=-1, keepdim=True)
    uneven = ((kept - mean).abs() / mean).nan_to_num().amax(dim=-1)
    several = kept.isfinite().sum(dim=-1) > 1
    return bool(several.any()) and float(uneven[several].max()) < EVEN


def _judge_padding(judge: Judge, subject: Subject) -> CheckResult | None:
    for number, share in enumerate(measure_padding_shares(subject), start=1):
        if share > 1 - MASKED:
            return judge.failed(
                f"in layer {number}, words attend only to padding",
                hint="the mask is inverted: True means excluded in key_padding_mask, and included "
                "in attn_mask of scaled_dot_product_attention",
                share=share,
            )
        if share > MASKED:
            return judge.warned(
                f"in layer {number}, words give {share:.0%} of their attention to padding",
                hint="the mask is missing, does not fit the keys' dimension, or is too weak: mask "
                "keys, not queries, with -inf before the softmax",
                share=share,
            )
    return None


def measure_padding_shares(subject: Subject) -> list[float]:
    """Return, by layer, the share of attention to padding; empty where there is no padding."""
    _, is_padding = _choose_watched(subject)
    if is_padding is None:
        return []
    rows, length = is_padding.shape
    some = is_padding.any(dim=1) & ~is_padding.all(dim=1)
    shares = []
    for weights in observe_attention(subject)[0].weights:
        if weights.shape[-2:] != (length, length) or weights.shape[0] % rows or not some.any():
            continue
        by_row = weights.reshape(rows, -1, length, length)[some]
        kept = ~is_padding[some][:, None, :, None]
        given = (by_row * is_padding[some][:, None, None, :]).sum(dim=-1, keepdim=True)
        shares.append(float((given * kept).sum() / kept.expand_as(given).sum().clamp_min(1)))
    return shares
