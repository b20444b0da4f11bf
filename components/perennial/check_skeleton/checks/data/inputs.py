"""What the model is fed: examples that differ, tensors of a form that it can use."""

from collections.abc import Iterator

import polars as pl
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.cut import cuts, is_next, telling_end
from perennial.check_skeleton.checks.data.embeddings import misused_tables
from perennial.check_skeleton.checks.data.twins import twin_inputs
from perennial.check_skeleton.checks.model.padding import padding_of
from perennial.check_skeleton.subject import (
    SEQUENCE_LENGTH,
    Subject,
    distinct_examples,
    evaluated,
    example_keys,
    rows_of,
)
from perennial.check_skeleton.verdict import Judge
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

# Rounding and binning make some rows alike; four rows of which three vanish have lost something.
KEPT_SHARE = 0.25
# One input in place of a tenth of different rows: what missing files and failed decoding look like.
STAND_IN_SHARE = 0.1
# Texts of very different length fill half of what the longest needs; at four positions in five the
# length was chosen for other texts, and four fifths of the compute are lost.
MOST_PADDING = 0.8
# What stands before the end of most texts as well is a token, not padding.
PADDING_WITHIN = 0.1
BRIGHTEST = 255.0
DARK = 16.0


def repeated_inputs(subject: Subject) -> CheckResult:
    """Do different rows become different inputs?"""
    judge = Judge(
        "repeated_inputs",
        expected="about as many different inputs as different rows, none in place of many, and no "
        "input a copy of another",
        source="guides: look at the tensors right before the model; a constant batch trains "
        "without an error",
    )
    if twins := twin_inputs(subject):
        one, other, unread = twins
        return judge.failed(
            f"{one} and {other} are the same in every row, and no input depends on {unread}",
            hint=f"copy and paste: is one of them to be made of {unread}?",
        )
    if found := _judged_cuts(judge, subject):
        return found
    features = list(subject.task.columns.features)
    raw, encoded = subject.train_rows.select(features), inputs_of(subject.train)
    different, left = raw.n_unique(), len(distinct_examples(encoded))
    if left == 1:
        return judge.skipped("all inputs are the same: `input_scale` says so")
    shown = f"{different} different rows became {left} different inputs"
    stand_in = _most_common(example_keys(encoded)) - _most_common(raw.hash_rows().to_list())
    evidence = {"rows": different, "inputs": left, "stand_in": round(stand_in, 4)}
    if left < KEPT_SHARE * different:
        return judge.warned(
            shown,
            hint="encode loses what tells rows apart: texts cut too short, one position of a "
            "sequence, coarse rounding, lost columns",
            **evidence,
        )
    if stand_in > STAND_IN_SHARE:
        return judge.warned(
            f"{shown}; {stand_in:.0%} of the rows became one and the same",
            hint="what takes the place of these rows: missing files, failed decoding, texts cut to "
            "nothing, categories that are all unknown?",
            **evidence,
        )
    return judge.passed(shown, **evidence)


def _judged_cuts(judge: Judge, subject: Subject) -> CheckResult | None:
    """What is to be said of texts and lists of which one end never enters."""
    for cut in cuts(subject):
        if cut.has_room:
            return judge.failed(
                f"{cut}, though as many places of the tensor hold padding in every row",
                hint="texts or lists are cut by another limit than the tensor's length: one of the "
                "two is wrong, or left over from a trial",
            )
        if said := telling_end(subject, cut):
            return (judge.failed if is_next(subject, cut) else judge.warned)(
                f"{cut}; {said}",
                hint="the wrong end is cut off: keep the other one, `[-n:]` in place of `[:n]` for "
                "what was read or bought last. Right where labels are told early, by design",
            )
    return None


def input_form(subject: Subject) -> CheckResult:
    """Are codes within the embeddings, types what models compute with, positions mostly used?"""
    judge = Judge(
        "input_form",
        expected="codes that every embedding has a vector for, fields with vectors of their own, "
        f"no float64, no pixels from 0 to {BRIGHTEST:g}, at most {MOST_PADDING:.0%} padding",
        source="guides: look at dtype, range and padding right before the model",
    )
    samples = {"training": subject.train, "validation": subject.validation}
    if outside := next(_codes_outside(subject, samples), ""):
        return judge.failed(
            outside,
            hint="give values that training did not have a code of their own in encode; compare "
            "the vocabulary, and whether codes start at 0 or 1, with the embedding's size",
        )
    if misused := next(misused_tables(subject), None):
        return judge.failed(misused[0], hint=misused[1])
    inputs = inputs_of(subject.train)
    if doubles := [name for name, tensor in inputs.items() if tensor.dtype == torch.float64]:
        return judge.warned(
            f"{', '.join(doubles)}: float64",
            hint="cast to float32 in encode: weights are float32, so twice the memory and time buy "
            "nothing, or the model refuses",
        )
    if pixels := [name for name, tensor in inputs.items() if _are_pixels(tensor)]:
        return judge.warned(
            f"{', '.join(pixels)}: floats that are whole numbers up to {BRIGHTEST:g}",
            hint="these are raw pixels: subtract the mean and divide by the deviation, both from "
            "fit(train)",
        )
    padding = {name: _padding(tensor) for name, tensor in inputs.items() if _is_sequence(tensor)}
    if wasted := {name: share for name, share in padding.items() if share > MOST_PADDING}:
        name = max(wasted, key=lambda each: wasted[each])
        return judge.warned(
            f"{wasted[name]:.0%} of {name} is padding",
            hint="most of the compute goes into padding: shorten the sequence, or put several "
            "texts into one",
            padding=padding,
        )
    shown = ", ".join(f"{share:.0%} of {name} is padding" for name, share in padding.items())
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in inputs.values()})
    return judge.passed(", ".join([*types, *([shown] if shown else [])]), padding=padding)


def _most_common(keys: "list[bytes] | list[int]") -> float:
    """Share of the most frequent one."""
    return float(pl.Series(keys).value_counts()["count"].to_numpy().max() / len(keys))


def _codes_outside(subject: Subject, samples: dict[str, Batch]) -> Iterator[str]:
    """Embeddings that get codes without a vector, each with the sample that has them."""
    model = evaluated(subject.build_model())
    probes = {
        name: _Probe(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    for sample, batch in samples.items():
        with torch.no_grad():
            model(**inputs_of(rows_of(batch, _extremes(inputs_of(batch)))))
        for name, probe in probes.items():
            if probe.low < 0 or probe.high >= probe.size:
                yield (
                    f"{name or 'the embedding'} has {probe.size} vectors, codes run from "
                    f"{probe.low} to {probe.high} in the {sample} sample"
                )
                return


class _Probe:
    """Notes the codes that an embedding gets; those without a vector do not stop the pass.

    Args:
        embedding: Whose inputs are noted from now on.
    """

    def __init__(self, embedding: nn.Embedding | nn.EmbeddingBag) -> None:
        self.size = embedding.num_embeddings
        self.low, self.high = 0, 0
        embedding.register_forward_pre_hook(self._note)

    def _note(self, module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not given or not given[0].numel():
            return None
        codes = given[0]
        self.low = min(self.low, int(codes.min()))
        self.high = max(self.high, int(codes.max()))
        return (codes.clamp(0, self.size - 1), *given[1:])


def _extremes(inputs: Batch) -> Tensor:
    """Rows that hold the smallest and the largest code of each column or sequence; at least one."""
    rows = {0}
    for tensor in inputs.values():
        if tensor.is_floating_point() or not tensor.numel():
            continue
        columns = tensor.reshape(len(tensor), -1).long()
        wide = columns.shape[1] > SEQUENCE_LENGTH
        ends = (columns.amin(dim=1).argmin(), columns.amax(dim=1).argmax())
        found = ends if wide else (*columns.argmin(dim=0), *columns.argmax(dim=0))
        rows.update(int(row) for row in found)
    return torch.tensor(sorted(rows))


def _are_pixels(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.ndim < 3:
        return False
    low, high = float(tensor.min()), float(tensor.max())
    is_range = low >= 0 and DARK < high <= BRIGHTEST
    return is_range and bool((tensor == tensor.round()).all())


def _is_sequence(tensor: Tensor) -> bool:
    is_integer = not tensor.is_floating_point() and tensor.dtype != torch.bool
    return is_integer and tensor.ndim == 2 and tensor.shape[1] >= SEQUENCE_LENGTH


def _padding(tensor: Tensor) -> float:
    """Share of the positions that repeat one code up to the end, but for the first of them."""
    found = padding_of(tensor)
    if found is not None and found.is_left:
        tensor = tensor.flip(1)
    code = tensor[:, -1].mode().values
    is_code = tensor == code
    after = is_code.flip(1).cumprod(dim=1).sum(dim=1)
    padded = (after - 1).clamp_min(0)
    before = int(is_code.sum()) - int(after.sum())
    if before > PADDING_WITHIN * (tensor.numel() - int(after.sum())):
        return 0.0
    return float(padded.sum()) / tensor.numel()
