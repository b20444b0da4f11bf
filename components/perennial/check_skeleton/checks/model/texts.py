"""Check texts: their order matters, and padding is ignored."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.attention import is_padding_masked, observe_attention
from perennial.check_skeleton.checks.model.token_positions import (
    find_target_offset,
    find_tokens,
    watch_modules,
)
from perennial.check_skeleton.free_outputs import probe
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Padding,
    Subject,
    build_noisy_model,
    find_padding,
    select_rows,
)
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, inputs_of

PROBED_ROWS = 16
# Rounding moves what a layer gives by 1e-7 of itself, other tokens move it by more than 1e-3.
CONTENT = 1e-5
# Of what other tokens change: rounding is below 1e-5, rotary positions of the reference decoder
# are at 0.03, learned ones at 0.2.
ORDER = 1e-3
# Kernels add up in another order when sequences are shorter; padding that is seen moves more.
PADDING = 1e-4
FEWEST_TEXTS = 8
PARTS = 8
SEEN = (
    "padding affects outputs: pass an attention mask, exclude padding from means and maxima, pad "
    "on the right where attention is causal, and count positions from the start of the text"
)
# An equal step at all positions of padding moves a mean as far as one at all words, and further in
# short texts; behind a mask it moves nothing.
POOLED_SHARE = 0.2
LEAST = 1e-3
LAYOUTS = {1: 2, 2: 1}
"""Dimension of positions → dimension of numbers, in the output of a layer."""


@check(
    "position_use",
    expects="the output at a token changes with the order of earlier tokens",
    source="attention without positions sees a bag of tokens (Attention Is All You Need, "
    "section 3.5); thresholds measured on the reference decoder",
    tolerance=f"{ORDER:g} of what other tokens change",
    severity="warn",
)
def check_position_use(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the first layer that reads other tokens depends on their order."""
    batch = probe(subject)
    found = find_target_offset(subject, batch)
    if isinstance(found, str):
        return _judge_whole(judge, subject, batch) or judge.skipped(found)
    places = torch.arange(found.wanted.shape[1])
    ends = torch.where(found.wanted >= 0, places, 0).amax(dim=1)
    order = ends.argsort(descending=True)[:PROBED_ROWS]
    longest, last = select_rows(batch, order), int(ends[order].min())
    if last < 3:
        return judge.skipped("the texts are too short to reorder their tokens")
    tokens = longest[found.tokens]
    turned, replaced = tokens.clone(), tokens.clone()
    turned[:, 1:last] = tokens[:, 1:last].flip(1)
    replaced[:, 1:last] = tokens.roll(1, 0)[:, 1:last]
    variants = [{**longest, found.tokens: each} for each in (tokens, turned, replaced)]
    for layer, by_order, by_content in _measure_layers(subject, variants, last):
        if by_content > CONTENT:
            return _judge_order(judge, layer, by_order / by_content)
    return judge.skipped("no layer's output at a token depends on earlier tokens")


def _judge_whole(judge: Judge, subject: Subject, batch: Batch) -> CheckResult | None:
    """Judge models that answer once for each text; None where order may not matter."""
    tokens = find_tokens(batch)
    padding = None if tokens is None else find_padding(batch[tokens])
    observed, _ = subject.once(observe_attention)
    model = build_noisy_model(subject)
    is_recurrent = any(isinstance(each, nn.RNNBase) for each in model.modules())
    if tokens is None or not (is_recurrent or observed.lengths):
        return None
    length = batch[tokens].shape[1]
    content = torch.full((len(batch[tokens]),), length) if padding is None else padding.content
    longest = select_rows(batch, content.argsort(descending=True)[:PROBED_ROWS])
    kept = int(content.sort(descending=True).values[:PROBED_ROWS].min())
    if kept < FEWEST_TEXTS:
        return None
    # The first and last tokens may mark the ends of the text, and stay in place.
    inner = (
        slice(length - kept + 1, length - 1) if padding and padding.is_left else slice(1, kept - 1)
    )
    whole = longest[tokens]
    turned, replaced = whole.clone(), whole.clone()
    turned[:, inner] = whole[:, inner].flip(1)
    replaced[:, inner] = whole.roll(1, 0)[:, inner]
    with torch.no_grad():
        before, by_order, by_content = (
            model(**inputs_of({**longest, tokens: each})) for each in (whole, turned, replaced)
        )
    if _measure_change(before, by_content) <= CONTENT:
        return None
    return _judge_order(
        judge, "the output", _measure_change(before, by_order) / _measure_change(before, by_content)
    )


def _measure_layers(
    subject: Subject, variants: Sequence[Batch], place: int
) -> list[tuple[str, float, float]]:
    """Return each layer's change at one position, in order of execution: by order, by content."""
    model, seen = build_noisy_model(subject), []
    for each in variants:
        with watch_modules(model, each[LABEL].shape, place) as outputs, torch.no_grad():
            model(**inputs_of(each))
        seen.append(outputs)
    first, turned, replaced = seen
    return [
        (
            name or "the model",
            _measure_change(output, turned[name]),
            _measure_change(output, replaced[name]),
        )
        for name, output in first.items()
    ]


def _measure_change(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / (1e-12 + first.norm()))


def _judge_order(judge: Judge, layer: str, share: float) -> CheckResult:
    shown = f"at {layer}, reordered tokens change {share:.2g} of what other tokens change"
    if share > ORDER:
        return judge.passed(shown)
    return judge.warned(
        shown,
        hint="positions are missing: look for rotary embedding that is off, on the wrong axis, or "
        "on queries or keys alone, and for position ids that are all equal. Expected for models "
        "without positions by design",
    )


@check(
    "padding_independence",
    expects=(
        "the same outputs for short texts with other tokens as padding, or with less "
        "padding: models may recognise padding by its code"
    ),
    source="padding that is attended to makes the result of a text depend on the length of its "
    "batch",
)
def check_padding_independence(subject: Subject, judge: Judge) -> CheckResult:
    """Check that outputs do not depend on padding."""
    batch = probe(subject)
    tokens = find_tokens(batch)
    padding = None if tokens is None else find_padding(batch[tokens])
    if tokens is None or padding is None:
        return judge.skipped("no input is a sequence that is padded to one length")
    length, order = batch[tokens].shape[1], padding.content.argsort()
    shortest = order[padding.content[order] > 0][:PROBED_ROWS]  # empty texts have no other tokens
    kept = int(padding.content[shortest].max())
    window = slice(length - kept, length) if padding.is_left else slice(0, kept)
    whole, is_padding = select_rows(batch, shortest), padding.covers(length)[shortest]
    own = Padding(padding.code, padding.content[shortest], padding.is_left)
    with made_up("steps at the positions of padding"):
        pooled = find_pooled_padding(subject, whole, tokens, own)
    if pooled:
        return judge.failed(
            f"after {pooled.layer}, answers move {pooled.share:.2g} times as far with positions of "
            f"padding as with those of words, though {pooled.told_by} tells them apart",
            hint="padding is pooled: exclude it from means and maxima with the mask, and take the "
            "state of the last word, not of the last position",
        )
    codes = whole[tokens][~is_padding]
    filled = torch.where(is_padding, codes[codes != padding.code].mode().values, whole[tokens])
    sees = partial(
        _compute_text_outputs, build_noisy_model(subject), window=window, is_padding=is_padding
    )
    with made_up("other tokens as padding"):
        before, again, other = map(sees, (whole, whole, {**whole, tokens: filled}))
    if _measure_move(before, again) > PADDING:
        return judge.skipped("outputs are random in evaluation mode: see `modes`")
    if _measure_move(before, other) <= PADDING:
        return judge.passed("outputs do not change with other tokens as padding")
    cut = {
        name: each[:, window] if each.shape[:2] == whole[tokens].shape else each
        for name, each in whole.items()
    }
    try:
        shown = f"outputs move by up to {_measure_move(before, sees(cut)):.2g} without "
    except Exception as error:  # a model may be made for sequences of one length
        return _judge_in_place(judge, subject, whole, tokens, own) or judge.skipped(
            f"the model rejects shorter sequences: {type(error).__name__}"
        )
    shown += f"{length - kept} of {length} positions, which are padding"
    is_unseen = _measure_move(before, sees(cut)) <= PADDING
    return judge.passed(shown) if is_unseen else judge.warned(shown, hint=SEEN)


def _judge_in_place(
    judge: Judge, subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> CheckResult | None:
    """Judge whether outputs move with the vector of padding; None where it has no own vector."""
    model, looked_up, added = build_noisy_model(subject), [], [0.0]
    # The first token of the padding may mark the end of the text.
    places = Padding(padding.code, padding.content + 1, padding.is_left)
    beyond = places.covers(batch[tokens].shape[1])[:, :, None]

    def note(module: nn.Embedding, given: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        is_read = bool(given) and given[0].shape == batch[tokens].shape
        if not is_read or not torch.equal(given[0], batch[tokens]):
            return vectors
        looked_up.append(module)
        return vectors + added[0] * beyond

    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_hook(note)
    with torch.no_grad():
        before = model(**inputs_of(batch))
        if not looked_up or before.shape[1:2] == batch[tokens].shape[1:]:
            return None
        size = batch[tokens].shape[1] * looked_up[0].embedding_dim
        if any(
            isinstance(each, nn.Linear) and each.in_features >= size for each in model.modules()
        ):
            return None  # a weight for each position, padding included, by design
        added[0] = 1.0
        moved = _measure_move(before, model(**inputs_of(batch)))
    if moved <= PADDING:
        return judge.passed("outputs do not change with another vector for padding")
    return judge.warned(f"outputs move by up to {moved:.2g} with the vector of padding", SEEN)


def _compute_text_outputs(
    model: nn.Module, batch: Batch, *, window: slice, is_padding: Tensor
) -> Tensor:
    """Return outputs without those of padding; all, for models that answer once per text."""
    with torch.no_grad():
        output: Tensor = model(**inputs_of(batch))
    length, kept = is_padding.shape[1], is_padding[:, window].shape[1]
    if output.ndim < 2 or output.shape[1] not in (length, kept):
        return output
    output = output if output.shape[1] == kept else output[:, window]
    return output.masked_fill(
        is_padding[:, window].reshape(len(output), kept, *[1] * (output.ndim - 2)), 0.0
    )


def _measure_move(first: Tensor, second: Tensor) -> float:
    return float(((first - second).abs() / (1 + first.abs())).max())


@dataclass(frozen=True)
class PooledPadding:
    """An answer that depends on padding, though the model gets a mask.

    Attributes:
        layer: The last layer with an output for each position.
        told_by: What marks padding.
        share: How far the answer moves with padding, relative to words.
    """

    layer: str
    told_by: str
    share: float


def find_pooled_padding(
    subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> PooledPadding | None:
    """Return how padding affects the answer for a whole sequence; None where it does not.

    Args:
        subject: Builds the model.
        batch: Texts with padding.
        tokens: The input with their codes.
        padding: Padding of these texts.
    """
    rows, length = batch[tokens].shape
    # The first token of the padding may mark the end of the text.
    is_padding = Padding(padding.code, padding.content + 1, padding.is_left).covers(length)
    is_word = ~padding.covers(length)
    if not bool(is_padding.any(dim=1).all()):
        return None
    told_by = _find_marks(subject, batch, is_padding, is_word)
    if not told_by:
        return None
    model = build_noisy_model(subject)
    with torch.no_grad():
        name, before = _find_last_of_positions(model, batch, (rows, length))
        if not name or before.ndim > 2 or before.shape[1:] == (length,):
            return None
        moved = [
            _measure_move_at(model, batch, (name, before), where) for where in (is_padding, is_word)
        ]
    if moved[0] <= LEAST or moved[0] <= POOLED_SHARE * moved[1]:
        return None
    return PooledPadding(name, told_by, moved[0] / max(moved[1], 1e-12))


def _find_marks(subject: Subject, batch: Batch, is_padding: Tensor, is_word: Tensor) -> str:
    """Return what marks padding: a mask of the model or a layer, or masked attention."""
    found: list[str] = []

    def tells(given: object) -> bool:
        if not isinstance(given, Tensor) or given.numel() != is_word.numel():
            return False
        mask = given.reshape(is_word.shape).double()
        inside, outside = mask[is_word], mask[is_padding]
        is_even = (inside == inside[0]).all() & (outside == outside[0]).all()
        return bool(is_even & (inside[0] != outside[0]))

    def note(module: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        if any(tells(each) for each in (*given, *named.values())):
            found.append(f"the mask passed to {type(module).__name__}")

    model = build_noisy_model(subject)
    for each in model.modules():
        each.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        model(**inputs_of(batch))
    if found:
        return found[0]
    seen, observed = subject.once(observe_attention)
    return "the mask of its attention" if is_padding_masked(subject, seen, observed) else ""


def _find_last_of_positions(
    model: nn.Module, batch: Batch, shape: tuple[int, int]
) -> tuple[str, Tensor]:
    """Return the last layer, not an embedding, with outputs per position; and the answers."""
    called: list[str] = []
    handles = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, given: object, output: object) -> None:
            if _find_axis(output, shape):
                called.append("" if isinstance(module, nn.Embedding) else name)

        return module.register_forward_hook(note)

    for name, module in model.named_modules():
        if name:
            handles.append(watch(name, module))
    try:
        answers: Tensor = model(**inputs_of(batch))
    finally:
        for handle in handles:
            handle.remove()
    return (called[-1] if called else ""), answers


def _find_axis(output: object, shape: tuple[int, int]) -> int:
    """Return the dimension of the positions in a layer's output; 0 where there is none."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or first.ndim != 3 or first.shape[0] != shape[0]:
        return 0
    return next((axis for axis in LAYOUTS if first.shape[axis] == shape[1]), 0)


def _measure_move_at(
    model: nn.Module, batch: Batch, at: tuple[str, Tensor], where: Tensor
) -> float:
    """Return how far answers move, on average, with a layer's output at some positions."""
    name, before = at

    def step(_: nn.Module, given: object, output: object) -> object:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        axis = _find_axis(first, (where.shape[0], where.shape[1]))
        numbers = LAYOUTS[axis]
        size, generator = [1, 1, 1], torch.Generator().manual_seed(0)
        size[numbers] = first.shape[numbers]
        added = first.std() * torch.randn(size, generator=generator)
        moved = first + added * where.unsqueeze(numbers)
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    handle = model.get_submodule(name).register_forward_hook(step)
    try:
        return float((model(**inputs_of(batch)) - before).abs().mean())
    finally:
        handle.remove()
