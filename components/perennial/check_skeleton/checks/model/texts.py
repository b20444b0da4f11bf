"""Check texts: their order matters, and padding is ignored."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.attention import (
    MASKED,
    measure_padding_shares,
    observe_attention,
)
from perennial.check_skeleton.checks.model.padded_ends import describe_padded_end
from perennial.check_skeleton.checks.model.sequences import (
    find_target_offset,
    find_tokens,
    list_tokens,
)
from perennial.check_skeleton.free_outputs import probe
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.models import (
    build_noisy_model,
    measure_changes,
    run_model,
    watch_modules,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Padding, Subject, find_padding, once, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch

PROBED_ROWS = 16
# Rounding moves what a layer gives by 1e-7 of itself, other tokens move it by more than 1e-3.
CONTENT = 1e-5
# Of what other tokens change: rounding is below 1e-5, rotary positions of the reference decoder
# are at 0.03, learned ones at 0.2.
ORDER = 1e-3
# Kernels add up in another order when sequences are shorter; padding that is seen moves more.
PADDING = 1e-4
FEWEST_TEXTS = 8
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
    found = measure_order(subject)
    if isinstance(found, str):
        return judge.skipped(found)
    shown = (
        f"at {found.layer}, reordered tokens change {found.share:.2g} of what other tokens change"
    )
    if found.is_read:
        return judge.passed(shown)
    return judge.warned(
        shown,
        hint="positions are missing: look for rotary embedding that is off, on the wrong axis, or "
        "on queries or keys alone, and for position ids that are all equal. Expected for models "
        "without positions by design",
    )


@dataclass(frozen=True)
class Order:
    """How far the order of tokens moves a layer's output, as a share of what others move it."""

    layer: str
    share: float

    @property
    def is_read(self) -> bool:
        """Whether it is more than rounding."""
        return self.share > ORDER


@once
def measure_order(subject: Subject) -> Order | str:
    """Measure the first layer that reads other tokens, or why there is none.

    Of a decoder, its source is measured where its order is not read.
    """
    batch = probe(subject)
    found = find_target_offset(subject, batch)
    if isinstance(found, str):
        tokens = find_tokens(batch)
        return (tokens and _measure_whole(subject, batch, tokens)) or found
    # Beside the tokens of a decoder stand those of its source.
    for name in [each for each in list_tokens(batch) if each != found.tokens]:
        source = _measure_whole(subject, batch, name)
        if source and not source.is_read:
            return source
    places = torch.arange(found.wanted.shape[1])
    ends = torch.where(found.wanted >= 0, places, 0).amax(dim=1)
    order = ends.argsort(descending=True)[:PROBED_ROWS]
    longest, last = select_rows(batch, order), int(ends[order].min())
    if last < 3:
        return "the texts are too short to reorder their tokens"
    variants = _make_variants(longest, found.tokens, slice(1, last))
    for layer, by_order, by_content in _measure_layers(subject, variants, last):
        if by_content > CONTENT:
            return Order(layer, by_order / by_content)
    return "no layer's output at a token depends on earlier tokens"


def _measure_whole(subject: Subject, batch: Batch, tokens: str) -> Order | None:
    """Measure outputs by the order of an input; None where it may not matter."""
    padding = find_padding(batch[tokens])
    observed, _ = observe_attention(subject)
    model = build_noisy_model(subject)
    is_recurrent = any(isinstance(each, nn.RNNBase) for each in model.modules())
    if not (is_recurrent or observed.lengths):
        return None
    length = batch[tokens].shape[1]
    content = torch.full((len(batch[tokens]),), length) if padding is None else padding.content
    longest = select_rows(batch, content.argsort(descending=True)[:PROBED_ROWS])
    kept = int(content.sort(descending=True).values[:PROBED_ROWS].min())
    if kept < FEWEST_TEXTS:
        return None
    # The first and last tokens may mark the ends of the text, and stay in place.
    start = length - kept if padding and padding.is_left else 0
    inner = slice(start + 1, start + kept - 1)
    before, *others = (run_model(model, each) for each in _make_variants(longest, tokens, inner))
    by_order, by_content = (_measure_change(before, each) for each in others)
    if by_content <= CONTENT:
        return None
    return Order(f"the output, for {tokens}", by_order / by_content)


def _make_variants(batch: Batch, name: str, inner: slice) -> list[Batch]:
    """Return texts as they are, with inner tokens in reverse order, and with another text's."""
    tokens = batch[name]
    turned, replaced = tokens.clone(), tokens.clone()
    turned[:, inner] = tokens[:, inner].flip(1)
    replaced[:, inner] = tokens.roll(1, 0)[:, inner]
    return [{**batch, name: each} for each in (tokens, turned, replaced)]


def _measure_layers(
    subject: Subject, variants: Sequence[Batch], place: int
) -> list[tuple[str, float, float]]:
    """Return each layer's change at one position, in order of execution: by order, by content."""
    model, seen = build_noisy_model(subject), list[dict[str, Tensor]]()
    shape = variants[0][LABEL].shape

    def note(name: str, module: nn.Module, given: object, output: object) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.shape[:2] == shape and first.ndim > 2:
            seen[-1][name or "the model"] = first[:, place].double().flatten(1)

    with watch_modules(model, note):
        for each in variants:
            seen.append({})
            run_model(model, each)
    first, turned, replaced = seen
    return [
        (name, _measure_change(output, turned[name]), _measure_change(output, replaced[name]))
        for name, output in first.items()
    ]


def _measure_change(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / (1e-12 + first.norm()))


@check(
    "padding_independence",
    expects="the same outputs for short texts with other tokens as padding, or with less "
    "padding: models may recognise padding by its code",
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
    if pooled := _judge_pooled(judge, subject, whole, tokens, own):
        return pooled
    codes = whole[tokens][~is_padding]
    filled = torch.where(is_padding, codes[codes != padding.code].mode().values, whole[tokens])
    sees = partial(_compute_text_outputs, build_noisy_model(subject), window, is_padding)
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
        moved = _measure_move(before, sees(cut))
    except Exception as error:  # a model may be made for sequences of one length
        return _judge_in_place(judge, subject, whole, tokens, own) or judge.skipped(
            f"the model rejects shorter sequences: {type(error).__name__}"
        )
    shown = f"outputs move by up to {moved:.2g} without {length - kept} of {length} positions, "
    shown += "which are padding"
    return judge.passed(shown) if moved <= PADDING else judge.warned(shown, hint=SEEN)


def _judge_pooled(
    judge: Judge, subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> CheckResult | None:
    """Judge whether padding is pooled, or stands where the model reads the last token."""
    with made_up("steps at the positions of padding"):
        pooled = find_pooled_padding(subject, batch, tokens, padding)
        ended = describe_padded_end(subject)
    if pooled:
        return judge.failed(
            f"after {pooled[0]}, answers move {pooled[2]:.2g} times as far with positions of "
            f"padding as with those of words, though {pooled[1]} tells them apart",
            hint="padding is pooled: exclude it from means and maxima with the mask, and take the "
            "state of the last word, not of the last position",
        )
    if ended:
        return judge.failed(
            ended,
            hint="the last position is read in a way of its own, and is padding in shorter rows: "
            "pad on the left, or take the last token of each row by its length",
        )
    return None


def _judge_in_place(
    judge: Judge, subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> CheckResult | None:
    """Judge whether outputs move with the vector of padding; None where it has no own vector."""
    model, looked_up, added = build_noisy_model(subject), [], [0.0]
    # The first token of the padding may mark the end of the text.
    places = Padding(padding.code, padding.content + 1, padding.is_left)
    beyond = places.covers(batch[tokens].shape[1])[:, :, None]

    def note(_: str, module: nn.Embedding, given: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        is_read = bool(given) and given[0].shape == batch[tokens].shape
        if not is_read or not torch.equal(given[0], batch[tokens]):
            return vectors
        looked_up.append(module)
        return vectors + added[0] * beyond

    with watch_modules(model, note, kinds=nn.Embedding):
        before = run_model(model, batch)
        if not looked_up or before.shape[1:2] == batch[tokens].shape[1:]:
            return None
        size = batch[tokens].shape[1] * looked_up[0].embedding_dim
        widths = [each.in_features for each in model.modules() if isinstance(each, nn.Linear)]
        if max(widths, default=0) >= size:
            return None  # a weight for each position, padding included, by design
        added[0] = 1.0
        moved = _measure_move(before, run_model(model, batch))
    if moved <= PADDING:
        return judge.passed("outputs do not change with another vector for padding")
    return judge.warned(f"outputs move by up to {moved:.2g} with the vector of padding", SEEN)


def _compute_text_outputs(
    model: nn.Module, window: slice, is_padding: Tensor, batch: Batch
) -> Tensor:
    """Return outputs without those of padding; all, for models that answer once per text."""
    output = run_model(model, batch)
    length, kept = is_padding.shape[1], is_padding[:, window].shape[1]
    if output.ndim < 2 or output.shape[1] not in (length, kept):
        return output
    output = output if output.shape[1] == kept else output[:, window]
    hidden = is_padding[:, window].reshape(len(output), kept, *[1] * (output.ndim - 2))
    return output.masked_fill(hidden, 0.0)


def _measure_move(first: Tensor, second: Tensor) -> float:
    return float(measure_changes(first, second).max())


def find_pooled_padding(
    subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> tuple[str, str, float] | None:
    """Return how padding affects the answer for whole texts, though the model gets a mask.

    Returns:
        The last layer with an output for each position, what marks padding, and how far answers
        move with padding, relative to words. None where padding does not affect them.
    """
    length = batch[tokens].shape[1]
    # The first token of the padding may mark the end of the text.
    is_padding = Padding(padding.code, padding.content + 1, padding.is_left).covers(length)
    is_word = ~padding.covers(length)
    if not bool(is_padding.any(dim=1).all()):
        return None
    mark = _find_mark(subject, batch, is_padding, is_word)
    if not mark:
        return None
    model, called = build_noisy_model(subject), [""]

    def note(name: str, module: nn.Module, given: object, output: object) -> None:
        if _find_axis(output, batch[tokens].shape):
            called.append("" if isinstance(module, nn.Embedding) else name)

    with watch_modules(model, note):
        before = run_model(model, batch)
    if not called[-1] or before.ndim > 2 or before.shape[1:] == (length,):
        return None
    by_padding, by_words = (
        _measure_move_at(model, batch, called[-1], before, where) for where in (is_padding, is_word)
    )
    if by_padding <= LEAST or by_padding <= POOLED_SHARE * by_words:
        return None
    return called[-1], mark, by_padding / max(by_words, 1e-12)


def _find_mark(subject: Subject, batch: Batch, is_padding: Tensor, is_word: Tensor) -> str:
    """Return what marks padding: a mask of the model or a layer, or masked attention."""
    found: list[str] = []

    def is_mark(given: object) -> bool:
        if not isinstance(given, Tensor) or given.numel() != is_word.numel():
            return False
        mask = given.reshape(is_word.shape).double()
        inside, outside = mask[is_word], mask[is_padding]
        is_even = (inside == inside[0]).all() & (outside == outside[0]).all()
        return bool(is_even & (inside[0] != outside[0]))

    def note(module: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        if any(is_mark(each) for each in (*given, *named.values())):
            found.append(f"the mask passed to {type(module).__name__}")

    model = build_noisy_model(subject)
    for each in model.modules():
        each.register_forward_pre_hook(note, with_kwargs=True)
    run_model(model, batch)
    if found:
        return found[0]
    shares = measure_padding_shares(subject)
    return "the mask of its attention" if shares and max(shares) <= MASKED else ""


def _find_axis(output: object, shape: Sequence[int]) -> int:
    """Return the dimension of the positions in a layer's output; 0 where there is none."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or first.ndim != 3 or first.shape[0] != shape[0]:
        return 0
    return next((axis for axis in LAYOUTS if first.shape[axis] == shape[1]), 0)


def _measure_move_at(
    model: nn.Module, batch: Batch, name: str, before: Tensor, where: Tensor
) -> float:
    """Return how far answers move, on average, with a layer's output at some positions."""

    def step(_: nn.Module, given: object, output: object) -> object:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        axis = _find_axis(first, where.shape)
        numbers = LAYOUTS[axis]
        size, generator = [1, 1, 1], torch.Generator().manual_seed(0)
        size[numbers] = first.shape[numbers]
        added = first.std() * torch.randn(size, generator=generator)
        moved = first + added * where.unsqueeze(numbers)
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    handle = model.get_submodule(name).register_forward_hook(step)
    try:
        return float((run_model(model, batch) - before).abs().mean())
    finally:
        handle.remove()
