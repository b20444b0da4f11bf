"""Sequences: does each token count once, and is it predicted from those before it alone?"""

import polars as pl
import torch
from torch import Tensor

from components.check_skeleton.free_outputs import output_of, probe
from components.check_skeleton.subject import Subject, head_of, stirred_model
from components.check_skeleton.token_outputs import is_per_token
from components.check_skeleton.verdict import Judge
from components.contracts.skeleton import CheckResult
from components.engine.task import LABEL, WEIGHT, Batch, inputs_of

PROBED_ROWS = 16
# Rounding moves a logit by about 1e-7 of itself; one token seen too early moves it by more than
# 1e-2 under the noise that is put on the weights.
LOOKING_AHEAD = 1e-5


def example_weights(subject: Subject) -> CheckResult:
    """Does `weight` count what the example's loss is the mean of?"""
    judge = Judge(
        "example_weights",
        expected="no negative weights; for a loss over tokens, the number of tokens in it",
        source="the engine averages losses by weight: the mean over all tokens of the global "
        "batch, however many of them an example has",
    )
    weights, batch = subject.train.get(WEIGHT), head_of(probe(subject), PROBED_ROWS)
    if weights is not None and (wrong := _wrong_weights(weights)):
        return judge.failed(wrong, hint="return one number per example, 0 or more")
    counted = _counted(subject, batch)
    if counted is not None:
        return _judged_counts(judge, batch.get(WEIGHT), counted)
    if weights is None:
        return judge.skipped("every example counts the same, and none is a sequence")
    return judge.passed(f"from {float(weights.min()):.4g} to {float(weights.max()):.4g}")


def _wrong_weights(weights: Tensor) -> str:
    if weights.ndim != 1 or not bool(torch.isfinite(weights).all()) or float(weights.min()) < 0:
        return f"weights have shape {list(weights.shape)}, or are negative or not finite"
    return "" if float(weights.sum()) else "all weights are 0"


def _judged_counts(judge: Judge, weights: Tensor | None, counted: Tensor) -> CheckResult:
    """Weights against the number of positions that get a gradient."""
    if weights is None:
        if bool((counted == counted[0]).all()):
            return judge.passed(f"{int(counted[0])} tokens of every example are in its loss")
        return judge.warned(
            f"{int(counted.min())} to {int(counted.max())} tokens are in a loss, and all examples "
            "count the same",
            hint="return the number of tokens as `weight` from encode",
        )
    wrong = weights != counted
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        return judge.failed(
            f"{int(wrong.sum())} of {len(counted)} examples weigh other than the tokens in their "
            f"loss: one weighs {float(weights[row]):g} with {int(counted[row])} in it",
            hint="does padding enter the loss? Give it a label that the loss ignores",
        )
    return judge.passed(f"{float(weights.mean()):.4g} tokens on average, as many as in the loss")


def future_independence(subject: Subject) -> CheckResult:
    """Is every token predicted before it, or anything after it, is seen?"""
    judge = Judge(
        "future_independence",
        expected="outputs up to the first label that differs are the same for two texts that only "
        "then part",
        source="labels that are not shifted, or attention without its mask, leak what is to be "
        "predicted: the loss falls to nothing and the model is useless",
    )
    label = subject.task.columns.label
    rows = subject.train_rows.head(PROBED_ROWS)
    if rows[label].dtype != pl.String or subject.train[LABEL].ndim != 2:
        return judge.skipped("the label is no text")
    length = subject.train[LABEL].shape[1]
    batch = subject.task.encode(rows)
    other = subject.task.encode(rows.with_columns(_parting(rows[label], length // 2)))
    model = stirred_model(subject)
    with torch.no_grad():
        outputs = [model(**inputs_of(each)) for each in (batch, other)]
    if not is_per_token(outputs[0], batch[LABEL]):
        return judge.skipped("the model's output is not one row of scores per label")
    differs = batch[LABEL] != other[LABEL]
    shared = differs.cumsum(dim=1) <= differs.long()  # up to the first that differs, included
    moved = (outputs[0] - outputs[1]).abs().amax(dim=2) / (1 + outputs[0].abs().amax(dim=2))
    early = torch.where(shared & differs.any(dim=1, keepdim=True), moved, 0.0)
    pairs = int(differs.any(dim=1).sum())
    if not pairs:
        return judge.skipped(
            f"none of {len(rows)} texts has other labels once its second half is changed: nothing "
            "was compared"
        )
    if float(early.max()) <= LOOKING_AHEAD:
        return judge.passed(f"{pairs} pairs of texts")
    if _input_differs(batch, other, shared):
        return judge.failed(
            "the inputs hold the very token that is to be predicted from them",
            hint="shift the labels: label t is token t + 1",
        )
    return judge.failed(
        f"outputs move by up to {float(early.max()):.2g} before the texts part",
        hint="the model looks ahead: look for attention without a causal mask, convolutions with "
        "padding on both sides, and statistics over the sequence",
    )


def _counted(subject: Subject, batch: Batch) -> Tensor | None:
    """How many positions of each example get a gradient, shape [B]; None if none has a score."""
    output = output_of(subject, batch)
    if not is_per_token(output, batch[LABEL]):
        return None
    output = output.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(subject.task.losses(output, batch).sum(), output)
    return (gradient != 0).any(dim=2).sum(dim=1)


def _parting(texts: pl.Series, most: int) -> pl.Series:
    """The texts with other characters from their middle on, at the latest behind `most` bytes.

    A token is a byte or more, so that many bytes are no more tokens, whatever the alphabet.
    """
    changed = []
    for text in texts.fill_null(""):
        content = text.encode()
        shared = content[: min(len(content) // 2, most)].decode(errors="ignore")
        rest = text[len(shared) :]
        changed.append(shared + "".join(chr(ord(each) ^ 1) for each in rest))
    return pl.Series(texts.name, changed, dtype=pl.String)


def _input_differs(batch: Batch, other: Batch, shared: Tensor) -> bool:
    """Whether an input that is laid out like the label differs where outputs must not."""
    return any(
        bool(((tensor != other[name]) & shared).any())
        for name, tensor in inputs_of(batch).items()
        if tensor.shape == batch[LABEL].shape
    )
