"""Texts: whether texts are read completely and in order, and padding is ignored."""

from collections.abc import Mapping, Sequence
from functools import partial

import polars as pl
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.attention import observed_attention
from perennial.check_skeleton.checks.model.padding import Padding, padding_of
from perennial.check_skeleton.checks.model.pooling import pooled_padding
from perennial.check_skeleton.checks.model.reading import long_texts, parts_seen, told_by
from perennial.check_skeleton.checks.model.sequences import other_characters
from perennial.check_skeleton.checks.model.token_positions import (
    find_target_offset,
    tokens_of,
    watched,
)
from perennial.check_skeleton.checks.model.words import Words, words_as_padding, words_of
from perennial.check_skeleton.free_outputs import probe
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, rows_of, stirred_model
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
READ_ROWS = 128
FEWEST_TEXTS = 8
PARTS = 8
# Texts that fill more of their sequence may be cut correctly.
ROOM = 0.75
READ_SHARE = 0.5
CLEAR_ERRORS = 5.0
# Of the occurrences of frequent words. Lists of stop words in other languages and few buckets of
# a hash lose up to a half, vocabularies that are looked up wrongly nearly all.
COMMON_WORD = 0.02
DOUBTED_LOSS, CLEAR_LOSS = 1 / 3, 0.75
SEEN = (
    "padding affects outputs: pass an attention mask, exclude padding from means and maxima, pad "
    "on the right where attention is causal, and count positions from the start of the text"
)


@check(
    "text_coverage",
    expects=(
        "different inputs for different frequent words; most changes of one character "
        f"seen in each of {PARTS} parts of a text"
    ),
    source="guides: look at what the model really receives; contexts that are cut too early "
    "and unknown words lose text silently",
    tolerance=f"{DOUBTED_LOSS:.0%} of the words' occurrences, {READ_SHARE:.0%} of texts with "
    "room left",
)
def check_text_coverage(subject: Subject, judge: Judge) -> CheckResult:
    """Check that texts reach the tensors completely, frequent words as distinct inputs."""
    words = words_of(subject)
    if lost := _judged_words(judge, words):
        return lost
    if words and (padded := words_as_padding(subject)):
        name, lost_words, share = padded
        return (judge.failed if share >= COMMON_WORD else judge.warned)(
            f"{', '.join(lost_words[:4])} in {name}, in {share:.0%} of the texts, has the code of "
            "padding",
            hint="the vocabulary is numbered from 0, which is the code of padding: start after the "
            "codes of padding and unknown words",
        )
    found = _judged_parts(judge, subject)
    if found.outcome != "skipped" or found.is_unmeasured or not words:
        return found
    return judge.passed(f"{words[0].words} frequent words of {words[0].column} become "
                        f"{words[0].inputs} different inputs")  # fmt: skip


def _judged_words(judge: Judge, found: Sequence[Words]) -> CheckResult | None:
    """Judge the words that are lost; None where each word has its own input."""
    if not found or found[0].lost <= DOUBTED_LOSS:
        return None
    worst = found[0]
    shown = (
        f"{worst.words} frequent words of {worst.column} become {worst.inputs} different inputs"
        + (f", {worst.unseen} the input of an unknown word" if worst.unseen else "")
        + (f", {' and '.join(worst.alike)} the same input" if worst.alike else "")
        + f": {worst.lost:.0%} of their occurrences are lost"
    )
    hint = (
        "words are looked up in another spelling than in the vocabulary (case, cut, punctuation), "
        "by a part of them, or by shared codes: codes modulo a number, a limit on codes, or codes "
        "of padding and unknown words"
    )
    # A vocabulary chosen by hand may be small, but each of its words has its own input.
    is_clear = worst.lost > CLEAR_LOSS and worst.is_sequence and not worst.is_chosen
    return (judge.failed if is_clear else judge.warned)(shown, hint=hint, lost=worst.lost)


def _judged_parts(judge: Judge, subject: Subject) -> CheckResult:
    """Judge whether each part of a text is read: of the label, or of a feature."""
    label, labels = subject.task.columns.label, subject.train[LABEL]
    is_text = subject.train_rows[label].dtype == pl.String
    if not is_text or labels.ndim != 2 or labels.is_floating_point():
        return _judged_feature(judge, subject)
    tokens = tokens_of(subject.train)
    padding = None if tokens is None else padding_of(subject.train[tokens])
    if padding is None:
        return judge.skipped("texts fill their sequences, so cut texts are expected")
    has_room = padding.content <= ROOM * labels.shape[1]
    rows = subject.train_rows.filter(pl.Series(has_room.numpy())).head(READ_ROWS)
    rows = rows.filter(pl.col(label).str.len_chars() >= PARTS)
    if rows.height < FEWEST_TEXTS:
        return judge.skipped(f"{rows.height} texts leave room in their sequences")
    seen = _seen(subject, rows)
    shown = f"seen in the parts of {rows.height} texts: {', '.join(f'{s:.0%}' for s in seen)}"
    if min(seen) >= READ_SHARE:
        return judge.passed(shown, seen=seen)
    is_cut = seen[0] >= READ_SHARE > seen[-1]
    return judge.warned(
        shown,
        hint="texts are cut, though their sequences have room for more: look for a limit in encode "
        "that is smaller than the context"
        if is_cut
        else "many characters share one code: most words may be unknown to a tokenizer that is "
        "made for another language, case or encoding",
        seen=seen,
    )


def _judged_feature(judge: Judge, subject: Subject) -> CheckResult:
    """Judge a text feature: whether it is cut, and the cut text predicts the label."""
    name = long_texts(subject)
    if not name:
        return judge.skipped("neither the label nor a feature is free text")
    try:
        seen = parts_seen(subject, name)
    except Exception as error:  # a task may reject new texts
        return judge.skipped(f"encode rejects changed texts: {type(error).__name__}: {error}")
    unseen = [part for part, share in enumerate(seen) if share < READ_SHARE]
    shown = f"seen in the parts of long texts in {name}: {', '.join(f'{s:.0%}' for s in seen)}"
    if not seen or not unseen:
        return judge.passed(shown) if seen else judge.skipped("too few long texts")
    told = told_by(subject, name, unseen)
    if told < CLEAR_ERRORS:
        return judge.passed(
            f"{shown}; the rest does not predict the label ({told:.1f} standard errors)"
        )
    return judge.warned(
        f"{shown}; words in the unseen parts predict the label by {told:.0f} standard errors",
        hint=_cut(unseen, seen),
        seen=seen,
        told=round(told, 2),
    )


def _cut(unseen: Sequence[int], seen: Sequence[float]) -> str:
    """Return why parts of texts do not reach the inputs."""
    if len(unseen) == len(seen):
        return (
            "words do not reach the inputs: most words may be unknown to encode, because of case "
            "or spelling"
        )
    if 0 in unseen:
        return "the beginning of texts is cut off, and it predicts the label: keep it"
    return (
        "texts are cut, and the cut part predicts the label: raise the length, keep the end, or "
        "read more than one window"
    )


def _seen(subject: Subject, rows: pl.DataFrame) -> list[float]:
    """Return, by part, the share of texts whose tensors change with a character in it."""
    label, before, shares = subject.task.columns.label, subject.task.encode(rows), []
    exchange = other_characters(rows[label])
    for part in range(PARTS):
        texts = [_changed(text, (2 * part + 1) / (2 * PARTS), exchange) for text in rows[label]]
        changed = rows.with_columns(pl.Series(label, texts, dtype=pl.String))
        with made_up("texts with one other character"):
            after = subject.task.encode(changed)
        differs = [(after[name] != before[name]).flatten(1).any(dim=1)
                   for name in inputs_of(before)]  # fmt: skip
        shares.append(round(float(torch.stack(differs).any(dim=0).double().mean()), 4))
    return shares


def _changed(text: str, where: float, exchange: Mapping[int, str]) -> str:
    place = int(where * len(text))
    return text[:place] + text[place].translate(exchange) + text[place + 1 :]


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
        return _judged_whole(judge, subject, batch) or judge.skipped(found)
    places = torch.arange(found.wanted.shape[1])
    ends = torch.where(found.wanted >= 0, places, 0).amax(dim=1)
    order = ends.argsort(descending=True)[:PROBED_ROWS]
    longest, last = rows_of(batch, order), int(ends[order].min())
    if last < 3:
        return judge.skipped("the texts are too short to reorder their tokens")
    tokens = longest[found.tokens]
    turned, replaced = tokens.clone(), tokens.clone()
    turned[:, 1:last] = tokens[:, 1:last].flip(1)
    replaced[:, 1:last] = tokens.roll(1, 0)[:, 1:last]
    variants = [{**longest, found.tokens: each} for each in (tokens, turned, replaced)]
    for layer, by_order, by_content in _layers_at(subject, variants, last):
        if by_content > CONTENT:
            return _judged_order(judge, layer, by_order / by_content)
    return judge.skipped("no layer's output at a token depends on earlier tokens")


def _judged_whole(judge: Judge, subject: Subject, batch: Batch) -> CheckResult | None:
    """Judge models that answer once for each text; None where order may not matter."""
    tokens = tokens_of(batch)
    padding = None if tokens is None else padding_of(batch[tokens])
    observed, _ = subject.once(observed_attention)
    model = stirred_model(subject)
    is_recurrent = any(isinstance(each, nn.RNNBase) for each in model.modules())
    if tokens is None or not (is_recurrent or observed.lengths):
        return None
    length = batch[tokens].shape[1]
    content = torch.full((len(batch[tokens]),), length) if padding is None else padding.content
    longest = rows_of(batch, content.argsort(descending=True)[:PROBED_ROWS])
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
    if _change(before, by_content) <= CONTENT:
        return None
    return _judged_order(
        judge, "the output", _change(before, by_order) / _change(before, by_content)
    )


def _layers_at(
    subject: Subject, variants: Sequence[Batch], place: int
) -> list[tuple[str, float, float]]:
    """Return each layer's change at one position, in order of execution: by order, by content."""
    model, seen = stirred_model(subject), []
    for each in variants:
        with watched(model, each[LABEL].shape, place) as outputs, torch.no_grad():
            model(**inputs_of(each))
        seen.append(outputs)
    first, turned, replaced = seen
    return [
        (name or "the model", _change(output, turned[name]), _change(output, replaced[name]))
        for name, output in first.items()
    ]


def _change(first: Tensor, second: Tensor) -> float:
    return float((first - second).norm() / (1e-12 + first.norm()))


def _judged_order(judge: Judge, layer: str, share: float) -> CheckResult:
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
    tokens = tokens_of(batch)
    padding = None if tokens is None else padding_of(batch[tokens])
    if tokens is None or padding is None:
        return judge.skipped("no input is a sequence that is padded to one length")
    length, order = batch[tokens].shape[1], padding.content.argsort()
    shortest = order[padding.content[order] > 0][:PROBED_ROWS]  # empty texts have no other tokens
    kept = int(padding.content[shortest].max())
    window = slice(length - kept, length) if padding.is_left else slice(0, kept)
    whole, is_padding = rows_of(batch, shortest), padding.covers(length)[shortest]
    own = Padding(padding.code, padding.content[shortest], padding.is_left)
    with made_up("steps at the positions of padding"):
        pooled = pooled_padding(subject, whole, tokens, own)
    if pooled:
        return judge.failed(
            f"after {pooled.layer}, answers move {pooled.share:.2g} times as far with positions of "
            f"padding as with those of words, though {pooled.told_by} tells them apart",
            hint="padding is pooled: exclude it from means and maxima with the mask, and take the "
            "state of the last word, not of the last position",
        )
    codes = whole[tokens][~is_padding]
    filled = torch.where(is_padding, codes[codes != padding.code].mode().values, whole[tokens])
    sees = partial(_text_outputs, stirred_model(subject), window=window, is_padding=is_padding)
    with made_up("other tokens as padding"):
        before, again, other = map(sees, (whole, whole, {**whole, tokens: filled}))
    if _moved(before, again) > PADDING:
        return judge.skipped("outputs are random in evaluation mode: see `modes`")
    if _moved(before, other) <= PADDING:
        return judge.passed("outputs do not change with other tokens as padding")
    cut = {
        name: each[:, window] if each.shape[:2] == whole[tokens].shape else each
        for name, each in whole.items()
    }
    try:
        shown = f"outputs move by up to {_moved(before, sees(cut)):.2g} without "
    except Exception as error:  # a model may be made for sequences of one length
        return _judged_in_place(judge, subject, whole, tokens, own) or judge.skipped(
            f"the model rejects shorter sequences: {type(error).__name__}"
        )
    shown += f"{length - kept} of {length} positions, which are padding"
    is_unseen = _moved(before, sees(cut)) <= PADDING
    return judge.passed(shown) if is_unseen else judge.warned(shown, hint=SEEN)


def _judged_in_place(
    judge: Judge, subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> CheckResult | None:
    """Judge whether outputs move with the vector of padding; None where it has no own vector."""
    model, looked_up, added = stirred_model(subject), [], [0.0]
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
        moved = _moved(before, model(**inputs_of(batch)))
    if moved <= PADDING:
        return judge.passed("outputs do not change with another vector for padding")
    return judge.warned(f"outputs move by up to {moved:.2g} with the vector of padding", SEEN)


def _text_outputs(model: nn.Module, batch: Batch, *, window: slice, is_padding: Tensor) -> Tensor:
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


def _moved(first: Tensor, second: Tensor) -> float:
    return float(((first - second).abs() / (1 + first.abs())).max())
