"""Check sequences: weights, targets, and independence of the future."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.unscored_ends import find_unscored_end
from perennial.check_skeleton.free_outputs import (
    compute_output,
    find_counted_tokens,
    find_wanted_tokens,
    is_per_token,
    probe,
)
from perennial.check_skeleton.made_up_inputs import are_inputs_of_label, made_up
from perennial.check_skeleton.models import (
    build_noisy_model,
    measure_changes,
    run_model,
    run_up_to_difference,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Padding,
    Subject,
    are_equal,
    find_differences,
    find_padding,
    select_head,
    select_rows,
)
from perennial.check_skeleton.verdict import DEPENDENCIES
from perennial.contracts.errors import join_names
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, WEIGHT, Batch, inputs_of

# Shuffled tokens agree with their labels about as often as letters do, once in ten to twenty; the
# end of a text may be labelled otherwise than it is padded, which matters in short ones.
AGREEMENT = 0.5
# Of its own size; smaller movements are rounding.
SMALLEST_MOVE = 1e-5
OFFSETS = (1, 0, 2, -1, 3, -2)
HIDDEN = "the target tokens are hidden from the model"
# Masked language models hide their target tokens, four in five by one code.
HIDDEN_SHARE = 0.5
MOST_POSITIONS = 24
SHORTEST_SEQUENCE = 8
PROBED_ROWS = 16
# Rounding moves a logit by about 1e-7 of itself; one token seen too early moves it by more than
# 1e-2 under the noise that is put on the weights.
LOOKING_AHEAD = 1e-5
# One or two end marks are not padding; a quarter of the loss, in texts that fill half of
# their context, is.
MOST_PADDING = 0.1
# Answers are rarely shorter than a tenth of their prompt.
FEWEST_TOKENS = 0.1
LEARNED_FILL = 0.5
_OFF_BY = {
    2: "labels are shifted twice: in encode, and again in the model or the loss",
    0: "shift the labels: label t is token t + 1. A denoiser declares with reconstructs_inputs = "
    "True that its labels are its inputs",
    -1: "labels are shifted in the wrong direction: label t is token t + 1, not an earlier one",
}
_NO_END = (
    "end each text with a token of its own and keep it in the loss: where padding is the end's "
    "token, too, leave padding out by its place. A model that never had to predict an end goes on "
    "until it is stopped"
)
TEXTS = 16
FEWEST_LISTS = 4
# One token may mark the end of a text, and one more its beginning.
SHORTEST_RUN = 3


@dataclass(frozen=True)
class TargetOffset:
    """The targets of the loss, compared with the tokens that the model receives."""

    tokens: str  # name of the input with the tokens
    wanted: Tensor  # the target code at each position, [B, T], -1 where there is none
    # By offset, the share of targets that equal the token that far ahead.
    agreement: dict[int, float]

    @property
    def offset(self) -> int | None:
        """Distance to the target tokens, ahead; None where they are nowhere."""
        best = max(self.agreement, key=lambda offset: self.agreement[offset])
        return best if self.agreement[best] >= AGREEMENT else None


def measure_agreements(tokens: Tensor, wanted: Tensor) -> dict[int, float]:
    """Return, by offset, the share of targets [B, T] that equal the token that far ahead."""
    length, shares = wanted.shape[1], {}
    for offset in OFFSETS:
        start, end = max(-offset, 0), length - max(offset, 0)
        asks = wanted[:, start:end]
        holds = tokens[:, start + offset : end + offset] == asks
        shares[offset] = float(holds[asks >= 0].double().mean().nan_to_num())
    return shares


def find_target_offset(subject: Subject, batch: Batch) -> TargetOffset | str:
    """Return the targets of a batch; or why they cannot be compared with tokens."""
    output = compute_output(subject, batch)
    if not is_per_token(output, batch[LABEL]):
        return "the model's output is not one row of scores per label"
    wanted = find_wanted_tokens(subject.task, output, batch)
    found = [
        TargetOffset(name, wanted, measure_agreements(tensor, wanted))
        for name, tensor in inputs_of(batch).items()
        if tensor.shape == wanted.shape and not tensor.is_floating_point()
    ]
    if not found:
        return "no input has the shape of the labels"
    best = max(found, key=lambda each: max(each.agreement.values()))
    shown, asks = batch[best.tokens][wanted >= 0], wanted[wanted >= 0]
    code = shown.mode().values if len(shown) else -1
    if bool((shown == code).double().mean() >= HIDDEN_SHARE and not (asks == code).any()):
        return HIDDEN
    return best


def find_tokens(batch: Batch) -> str | None:
    """Return the input whose codes vary most, of those that may be sequences of tokens."""
    return next(iter(list_tokens(batch)), None)


def list_tokens(batch: Batch) -> list[str]:
    """Return the inputs that may be sequences of tokens; first those whose codes vary most."""
    sequences = {
        name: len(np.unique(tensor.numpy()))
        for name, tensor in inputs_of(batch).items()
        if tensor.ndim == 2
        and not tensor.is_floating_point()
        and tensor.shape[1] >= SHORTEST_SEQUENCE
    }
    return sorted(sequences, key=lambda name: -sequences[name])


def measure_dependencies(model: nn.Module, batch: Batch, name: str, most: int) -> JsonValue:
    """Return how much the output at each position moves with the token at each, from 0 to 1.

    By output, by input, evenly spread over the positions. The first example of the batch is
    changed, one token at a time, with at most so many changes in each forward pass.
    """
    length = batch[name].shape[1]
    places = torch.linspace(0, length - 1, min(length, MOST_POSITIONS)).round().long()
    one = select_head(inputs_of(batch), 1)
    used = torch.from_numpy(np.unique(batch[name].numpy()))
    columns = []
    before = run_model(model, one)
    for some in torch.split(places, max(most, 1)):
        rows = torch.arange(len(some))
        inputs = select_rows(one, rows * 0)
        at = torch.searchsorted(used, inputs[name][rows, some])
        inputs[name][rows, some] = used[(at + 1) % len(used)]
        # Copies in a batch may affect each other; `example_independence` checks that.
        moves = measure_changes(before, run_model(model, inputs)).amax(dim=2)
        columns.append(moves[:, places])
    return shade(torch.cat(columns).t())


def shade(moved: Tensor) -> JsonValue:
    """Return how far outputs move with inputs, [outputs, inputs], as `DEPENDENCIES` shows it.

    0 is not at all, 1 by its own size or more; between them each decade is one step.
    """
    decades = -math.log10(SMALLEST_MOVE)
    shades = (1 + moved.clamp_min(SMALLEST_MOVE).log10() / decades).clamp_max(1.0)
    return [[round(shade, 3) for shade in row] for row in shades.tolist()]


@check(
    "example_weights",
    expects="no negative weights; for a loss over tokens, the number of tokens in it, without "
    "padding",
    source="the engine averages losses by weight: the mean over all tokens of the global "
    "batch, however many of them an example has",
)
def check_example_weights(subject: Subject, judge: Judge) -> CheckResult:
    """Check that `weight` is the number of tokens in the loss of the example."""
    weights, batch = subject.train.get(WEIGHT), select_head(probe(subject), PROBED_ROWS)
    if weights is not None:
        is_finite = weights.ndim == 1 and bool(torch.isfinite(weights).all())
        if not is_finite or float(weights.min()) < 0 or not float(weights.sum()):
            return judge.failed(
                f"weights have shape {list(weights.shape)}, are all 0, negative or not finite",
                hint="return one number per example, 0 or more",
            )
    beyond = measure_learned_beyond_lists(subject)
    if beyond is not None and beyond > LEARNED_FILL:
        return judge.failed(
            f"{beyond:.0%} of the positions after the ends of short lists of labels are in the "
            "loss, where inputs are padded too",
            hint="padding is learned and counted: give it a label that the loss ignores, or a "
            "mask, and count the other positions as `weight`",
        )
    counted = find_counted_tokens(subject.task, compute_output(subject, batch), batch)
    if counted is not None:
        return (
            _judge_counts(judge, batch.get(WEIGHT), counted.sum(dim=1))
            or _judge_fill(judge, subject)
            or _judge_places(judge, batch, counted)
        )
    if weights is None:
        return judge.skipped("every example has the same weight, and none is a sequence")
    return judge.passed(f"from {float(weights.min()):.4g} to {float(weights.max()):.4g}")


def _judge_counts(judge: Judge, weights: Tensor | None, counted: Tensor) -> CheckResult | None:
    """Compare weights with the number of positions with a gradient; None where they agree."""
    if weights is None:
        if bool((counted == counted[0]).all()):
            return None
        return judge.warned(
            f"examples have {int(counted.min())} to {int(counted.max())} tokens in their loss, but "
            "equal weights",
            hint="return the number of tokens as `weight` from encode",
        )
    wrong = weights != counted
    if not bool(wrong.any()):
        return None
    row = int(wrong.nonzero()[0])
    return judge.failed(
        f"in {int(wrong.sum())} of {len(counted)} examples, the weight is not the number of tokens "
        f"in the loss: one has weight {float(weights[row]):g} with {int(counted[row])} tokens",
        hint="padding may be in the loss, or only the last token: give padding a label that the "
        "loss ignores, and count the others as `weight`",
    )


def _judge_fill(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge whether the padding of the shortest texts is in the loss; None where it is not."""
    found = find_filled_texts(subject)
    if found is None:
        return None
    batch, fill = found
    asks = find_target_offset(subject, batch)
    # The padding may be that of a source, whose tokens are not those of the label.
    if isinstance(asks, str) or asks.offset != 1 or asks.wanted.shape != fill.shape:
        return None
    # A run of padding has one target; the mark that ends or begins the text was removed before.
    wanted = asks.wanted[fill]
    in_loss = float((wanted == wanted.mode().values).double().mean())
    if int(wanted.mode().values) < 0 or in_loss < LEARNED_FILL:
        return None
    return judge.failed(
        f"{in_loss:.0%} of the padding of the {len(fill)} shortest texts is in the loss",
        hint="padding is learned and counted: give it a label that the loss ignores, and count "
        "the other tokens as `weight`",
    )


def _judge_places(judge: Judge, batch: Batch, counted: Tensor) -> CheckResult:
    """Judge which tokens are in the loss: all but padding are expected."""
    tokens = find_tokens(batch)
    padding = None if tokens is None else find_padding(batch[tokens])
    is_padding = torch.zeros_like(counted) if padding is None else padding.covers(counted.shape[1])
    in_loss = float((counted & is_padding).sum() / counted.sum().clamp_min(1))
    if padding is not None and in_loss > MOST_PADDING:
        return judge.warned(
            f"{in_loss:.0%} of the tokens in the loss are padding, runs of {padding.code}",
            hint="padding is learned and counted: give it a label that the loss ignores, and count "
            "the other tokens as `weight`",
        )
    share = float(counted.sum() / (~is_padding).sum().clamp_min(1))
    if share < FEWEST_TOKENS:
        return judge.warned(
            f"{share:.0%} of the tokens that are not padding are in the loss",
            hint="only the last token may be learned: each token of a text can be learned from "
            "earlier ones. Expected where only short answers count",
        )
    mean = float(counted.sum(dim=1).double().mean())
    return judge.passed(f"{mean:.4g} tokens on average, equal to the weights")


@check(
    "next_token",
    expects="the target of each position is the next token",
    source="guides: off-by-one targets; measured by the gradient of the loss, so that labels "
    "may be shifted anywhere",
    tolerance=f"{AGREEMENT:.0%} of the positions",
)
def check_next_token(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the target of each position is the next token."""
    batch = probe(subject)
    output = compute_output(subject, batch)
    if is_per_token(output, batch[LABEL]):
        wanted = find_wanted_tokens(subject.task, output, batch)
        if max(measure_agreements(batch[LABEL], wanted).values()) < AGREEMENT:
            return judge.failed(
                "the targets of the loss are not the labels of its positions, nor of near ones",
                hint="the loss pairs outputs with labels of other positions: look for view or "
                "reshape where permute is meant, and for a softmax over the wrong dimension",
            )
    return _judge_offset(judge, subject, batch)


def _judge_offset(judge: Judge, subject: Subject, batch: Batch) -> CheckResult:
    """Judge how far ahead the target of each position is, and whether texts have an end."""
    columns, found = subject.task.columns, find_target_offset(subject, batch)
    if not isinstance(found, str) and found.offset == 0 and subject.task.reconstructs_inputs:
        found = "the target of each position is its own token, as the task declares"
    if isinstance(found, str):
        return judge.skipped(found)
    agreement = {f"{far:+d}": round(share, 4) for far, share in sorted(found.agreement.items())}
    if found.offset == 1:
        end = find_unscored_end(batch, found.tokens, found.wanted)
        if end is None:
            return judge.passed(f"{found.agreement[1]:.0%} of positions", agreement=agreement)
        return (judge.failed if end.is_marked else judge.warned)(end.description, hint=_NO_END)
    if found.offset is not None:
        return judge.failed(
            f"the target of {found.agreement[found.offset]:.0%} of positions is the token "
            f"{found.offset:+d} from theirs",
            hint=_OFF_BY[max(-1, min(found.offset, 2))],
            agreement=agreement,
        )
    if columns.label not in columns.features:
        return judge.skipped("the labels are not the tokens of the input")
    return judge.warned(
        f"the target of at most {max(found.agreement.values()):.0%} of positions is a token near",
        hint="tokens are shuffled against their labels, or inputs and labels use different "
        "vocabularies",
        agreement=agreement,
    )


@check(
    "future_independence",
    expects="the same outputs for two sequences up to their first difference",
    source="labels that are not shifted, or attention without its mask, leak the target: the "
    "loss falls to nothing and the model is useless",
)
def check_future_independence(subject: Subject, judge: Judge) -> CheckResult:
    """Check that no output depends on its target token or later ones."""
    if reason := _find_no_future(subject):
        return judge.skipped(reason)
    label, rows = subject.task.columns.label, subject.train_rows.head(PROBED_ROWS)
    if rows[label].dtype != pl.String:
        return _judge_lists(subject, judge, rows)
    batch = subject.task.encode(rows)
    parting = _change_second_halves(rows[label], subject.train[LABEL].shape[1] // 2)
    with made_up("texts with other characters in their second half"):
        other = subject.task.encode(rows.with_columns(parting))
    found = find_target_offset(subject, batch)
    if isinstance(found, str):
        return judge.skipped(found)
    if bool(_find_shared_positions(found, batch, other).all()):
        return judge.skipped(
            f"none of {len(rows)} texts gets other tokens when its second half is changed: nothing "
            "was compared"
        )
    if found.offset is not None and found.offset <= 0:
        return judge.failed(
            "the inputs contain the token that is to be predicted from them",
            hint="shift the labels: label t is token t + 1",
        )
    return _judge_outputs(judge, subject, found, (batch, other))


def _find_no_future(subject: Subject) -> str:
    """Return why no position has a future that its inputs could tell; empty where one may."""
    rows, labels = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    if subject.task.reconstructs_inputs:
        return "the target of each position is its own token, as the task declares"
    is_text = rows.dtype == pl.String and labels.ndim == 2 and not labels.is_floating_point()
    if not is_text and not _is_list_of_values(rows):
        return "the label is neither text nor a list"
    if not are_inputs_of_label(subject):
        return "no input depends on the label"
    return ""


def _judge_lists(subject: Subject, judge: Judge, rows: pl.DataFrame) -> CheckResult:
    """Judge what the model reads of lists before the label that it predicts.

    One value of each list is changed, for a label may be the same for several. Where there is a
    label for each step, outputs stay up to the first that differs; where a list has one code, as
    that of its last value, inputs stay if the code changes.
    """
    lists, batch = rows[subject.task.columns.label], subject.task.encode(rows)
    is_of_steps = batch[LABEL].ndim == 2
    others = []
    for share in (0.5, 1.0) if is_of_steps else (1.0,):
        with made_up("lists with another value in one place"):
            others.append(subject.task.encode(rows.with_columns(_change_value(lists, share))))
    if not is_of_steps:
        return _judge_codes(judge, batch, others[0])
    if not any(find_differences(inputs_of(batch), inputs_of(other)) for other in others):
        return judge.skipped("no input depends on the label")
    if find_target_offset(subject, batch) == HIDDEN:
        return judge.skipped(HIDDEN)
    return _judge_steps(subject, judge, batch, others)


def _judge_steps(
    subject: Subject, judge: Judge, batch: Batch, others: Sequence[Batch]
) -> CheckResult:
    """Judge the outputs up to the first step whose label differs."""
    model = build_noisy_model(subject)
    if not are_equal(run_model(model, batch), run_model(model, batch)):
        return judge.skipped("outputs are random in evaluation mode, which `modes` judges")
    moves = [
        min(float(measure_changes(own, after).max()) for own, after in pairs)
        for other in others
        if (pairs := run_up_to_difference(model, batch, other))
    ]
    if not moves:
        return judge.skipped("no step of the model's output belongs to a label that changes")
    if max(moves) <= LOOKING_AHEAD:
        return judge.passed(f"{len(moves)} values in each of {len(batch[LABEL])} lists")
    return judge.failed(
        f"outputs move by up to {max(moves):.2g} with the label of their own step or a later one",
        hint="labels that are not shifted against the inputs, or a model that looks ahead; an "
        "autoencoder declares with reconstructs_inputs = True that its labels are its inputs",
    )


def _judge_codes(judge: Judge, batch: Batch, other: Batch) -> CheckResult:
    """Judge whether inputs change together with the one code that each list is to be given."""
    is_other = batch[LABEL] != other[LABEL]
    if batch[LABEL].is_floating_point() or batch[LABEL].ndim != 1 or not bool(is_other.any()):
        return judge.skipped("no list's label is the code of its last value")
    ahead, after = (select_rows(inputs_of(each), is_other) for each in (batch, other))
    if changed := find_differences(ahead, after):
        return judge.failed(
            f"with the last value of a list its label changes, and so do {join_names(changed)}",
            hint="the inputs contain the value that is to be predicted from them: leave it out",
        )
    return judge.passed(f"the inputs of {int(is_other.sum())} lists do not contain their labels")


def _judge_outputs(
    judge: Judge, subject: Subject, found: TargetOffset, texts: tuple[Batch, Batch]
) -> CheckResult:
    """Judge the outputs of two texts before their first difference."""
    model, (batch, other) = build_noisy_model(subject), texts
    before, again, after = (run_model(model, each) for each in (batch, batch, other))
    if float(measure_changes(before, again).max()) > LOOKING_AHEAD:
        return judge.skipped("outputs are random in evaluation mode, which `modes` judges")
    shared = _find_shared_positions(found, batch, other)
    is_before = shared & ~shared.all(dim=1, keepdim=True)
    early = torch.where(is_before, measure_changes(before, after).amax(dim=2), 0.0)
    moves = measure_dependencies(model, batch, found.tokens, subject.task.scoring_rows)
    seen = {DEPENDENCIES: moves}
    if float(early.max()) <= LOOKING_AHEAD:
        pairs = int((~shared).any(dim=1).sum())
        return judge.passed(f"{pairs} pairs of texts", **seen)
    return judge.failed(
        f"outputs move by up to {float(early.max()):.2g} before the texts differ",
        hint="the model looks ahead: look for attention without a causal mask, convolutions with "
        "padding on both sides, and statistics over the sequence",
        **seen,
    )


def _find_shared_positions(found: TargetOffset, batch: Batch, other: Batch) -> Tensor:
    """Return the positions before the first token in which two texts differ, [B, T]."""
    return (batch[found.tokens] != other[found.tokens]).cumsum(dim=1) == 0


def map_characters(texts: pl.Series) -> dict[int, int]:
    """Map each character to another one of the texts: tokenizers may not know others."""
    characters = "".join(sorted(set("".join(texts.drop_nulls()))))
    return str.maketrans(characters, characters[1:] + characters[:1])


def _change_second_halves(texts: pl.Series, most: int) -> pl.Series:
    """Return the texts with other characters from their middle on, at most after `most` bytes.

    A token is a byte or more, so that many bytes are no more tokens, whatever the alphabet.
    """
    changed, exchange = [], map_characters(texts)
    for text in texts.fill_null(""):
        content = text.encode()
        shared = content[: min(len(content) // 2, most)].decode(errors="ignore")
        changed.append(shared + text[len(shared) :].translate(exchange))
    return pl.Series(texts.name, changed, dtype=pl.String)


def _is_list_of_values(lists: pl.Series) -> bool:
    """Whether each row is a list or an array of plain values."""
    dtype = lists.dtype
    return isinstance(dtype, pl.List | pl.Array) and not dtype.inner.is_nested()


def _change_value(lists: pl.Series, share: float) -> pl.Series:
    """Return the lists with another value of theirs at a share of their length."""
    values = sorted(lists.explode().drop_nulls().unique().to_list())
    exchange = dict(zip(values, values[1:] + values[:1], strict=True))
    changed = lists.to_list()
    for each in filter(None, changed):
        at = int(share * (len(each) - 1))
        each[at] = exchange.get(each[at])
    return pl.Series(lists.name, changed, dtype=lists.dtype)


def find_filled_texts(subject: Subject) -> tuple[Batch, Tensor] | None:
    """Return the shortest padded texts, and their padding after its first token, [B, T].

    Padding is the token that other texts end in, or begin with, when they are cut short. None
    where the label is not text, or texts are not padded.
    """
    label = subject.task.columns.label
    rows = subject.train_rows
    if rows[label].dtype != pl.String:
        return None
    rows = rows.filter(pl.col(label).str.len_chars() > 1).sort(pl.col(label).str.len_chars())
    middle = rows.slice(rows.height // 2, TEXTS)
    if middle.height < TEXTS:
        return None
    shares = enumerate(middle[label], start=1)
    cut = [text[: math.ceil(len(text) ** (place / TEXTS))] for place, text in shares]
    rows = rows.head(TEXTS)
    try:
        short = subject.task.encode(middle.with_columns(pl.Series(label, cut, dtype=pl.String)))
        batch = subject.task.encode(rows)
    except Exception:  # a task may reject shorter texts
        return None
    name = find_tokens(batch)
    found = None if name is None or name not in short else find_padding(short[name])
    if found is None or name is None:
        return None
    tokens = batch[name] if found.is_left else batch[name].flip(1)
    runs = (tokens == found.code).long().cumprod(dim=1).sum(dim=1)
    # A text may end in characters that look like padding.
    ends = (text[:3] if found.is_left else text[-3:] for text in rows[label])
    own = torch.tensor([len(set(each)) == 1 for each in ends])
    filled = (runs >= SHORTEST_RUN) & ~own
    if not bool(filled.any()):
        return None
    inner = Padding(found.code, tokens.shape[1] - runs + 1, found.is_left)
    return select_rows(batch, filled), inner.covers(tokens.shape[1])[filled]


def measure_learned_beyond_lists(subject: Subject) -> float | None:
    """Return the share of positions after short lists of labels that gets a gradient.

    None where labels are not lists of several lengths, with one label for each position of an input
    that is padded in the same way.
    """
    column, labels = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    is_listed = isinstance(column.dtype, pl.List) and _is_list_of_values(column)
    if not is_listed or labels.ndim != 2 or subject.task.scored_together > 1:
        return None
    lengths = column.list.len().fill_null(0).cast(pl.Int64).to_torch()
    width = labels.shape[1]
    short = torch.nonzero((lengths > 0) & (lengths <= width - SHORTEST_RUN + 1)).flatten()[:TEXTS]
    if len(short) < FEWEST_LISTS:
        return None
    batch, lengths = select_rows(subject.train, short), lengths[short][:, None]
    output = compute_output(subject, batch)
    if output.ndim < 2 or output.shape[1] != width:
        return None
    places = torch.arange(width)
    values = column[short.tolist()].to_list()
    for beyond in (places >= lengths, places < width - lengths):
        if _has_one_code_per_value(values, batch[LABEL], beyond) and _is_filled(batch, beyond):
            given = output.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(subject.task.losses(given, batch).sum(), given)
            is_learned = (gradient != 0).reshape(len(short), width, -1).any(dim=2)
            return float(is_learned[beyond].double().mean())
    return None


def _has_one_code_per_value(values: list[list[object]], labels: Tensor, beyond: Tensor) -> bool:
    """Whether each value of the lists has one code at its own position, unlike sets of tags."""
    codes: dict[object, float] = {}
    for row, listed in enumerate(values):
        for value, code in zip(listed, labels[row][~beyond[row]].tolist(), strict=False):
            if codes.setdefault(value, code) != code:
                return False
    listed_values = sum(len(each) for each in values)
    return len(set(codes.values())) > 1 and 2 * len(codes) <= listed_values


def _is_filled(batch: Batch, beyond: Tensor) -> bool:
    """Whether an input with a position for each label has one value after the ends of lists."""
    for tensor in inputs_of(batch).values():
        if tensor.shape[:2] == beyond.shape:
            flat = tensor.reshape(*beyond.shape, -1)
            fill, content = flat[beyond], flat[~beyond]
            if bool((fill == fill[:1]).all()) and bool((content != fill[:1]).any()):
                return True
    return False
