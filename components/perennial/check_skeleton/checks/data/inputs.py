"""Check the model's inputs: examples that differ, tensors in a form that it can use."""

from collections.abc import Iterator

import polars as pl
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.cut import describe_lost_end, find_cuts, is_next_element
from perennial.check_skeleton.checks.data.embeddings import find_misused_tables
from perennial.check_skeleton.checks.data.twins import find_twin_inputs
from perennial.check_skeleton.checks.model.padding import padding_of
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    SEQUENCE_LENGTH,
    Subject,
    distinct_examples,
    evaluated,
    example_keys,
    rows_of,
)
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

# Rounding and binning make some rows equal; if three of four vanish, something is lost.
KEPT_SHARE = 0.25
# Missing files and failed decoding give a tenth or more of different rows the same input.
STAND_IN_SHARE = 0.1
# Texts of very different length fill half of what the longest needs; with 80 % padding the length
# was chosen for other texts, and 80 % of the compute is wasted.
MOST_PADDING = 0.8
# A code that most texts also contain before their end is a token, not padding.
PADDING_WITHIN = 0.1
BRIGHTEST = 255.0
DARK = 16.0


@check(
    "repeated_inputs",
    expects=(
        "about as many different inputs as different rows, no input shared by many rows, "
        "and no input a copy of another"
    ),
    source="guides: look at the tensors right before the model; a constant batch trains "
    "without an error",
    needs_losses=False,
)
def check_repeated_inputs(subject: Subject, judge: Judge) -> CheckResult:
    """Check that different rows become different inputs."""
    if twins := find_twin_inputs(subject):
        one, other, unread = twins
        return judge.failed(
            f"{one} and {other} are the same in every row, and no input depends on {unread}",
            hint=f"copy and paste: is one of them to be made of {unread}?",
        )
    if found := _judge_cuts(judge, subject):
        return found
    features = list(subject.task.columns.features)
    raw, encoded = subject.train_rows.select(features), inputs_of(subject.train)
    different, left = raw.n_unique(), len(distinct_examples(encoded))
    if left == 1:
        return judge.skipped("all inputs are the same: see `input_scale`")
    shown = f"{different} different rows became {left} different inputs"
    stand_in = _most_common(example_keys(encoded)) - _most_common(raw.hash_rows().to_list())
    evidence = {"rows": different, "inputs": left, "stand_in": round(stand_in, 4)}
    if left < KEPT_SHARE * different:
        return judge.warned(
            shown,
            hint="encode loses the differences between rows: texts cut too short, one position of "
            "a sequence, coarse rounding, lost columns",
            **evidence,
        )
    if stand_in > STAND_IN_SHARE:
        return judge.warned(
            f"{shown}; {stand_in:.0%} of the rows became the same input",
            hint="look for missing files, failed decoding, texts cut to nothing, or categories "
            "that are all unknown",
            **evidence,
        )
    return judge.passed(shown, **evidence)


def _judge_cuts(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge texts and lists that are truncated at one end; None if none is."""
    for cut in find_cuts(subject):
        if cut.has_room:
            return judge.failed(
                f"{cut}, although as many positions of the tensor hold padding in every row",
                hint="the limit that cuts texts or lists differs from the tensor's length: one of "
                "the two is wrong, or left over from an experiment",
            )
        if evidence := describe_lost_end(subject, cut):
            return (judge.failed if is_next_element(subject, cut) else judge.warned)(
                f"{cut}; {evidence}",
                hint="the wrong end is cut off: keep the other one, `[-n:]` instead of `[:n]` for "
                "what was read or bought last. Correct if early prediction is intended",
            )
    return None


@check(
    "input_form",
    expects=(
        "codes for which every embedding has a vector, fields with their own vectors, "
        f"no float64, no pixels from 0 to {BRIGHTEST:g}, at most {MOST_PADDING:.0%} padding"
    ),
    source="guides: look at dtype, range and padding right before the model",
    needs_losses=False,
)
def check_input_form(subject: Subject, judge: Judge) -> CheckResult:
    """Check that codes fit the embeddings, types fit the model, and most positions are used."""
    samples = {"training": subject.train, "validation": subject.validation}
    if outside := next(_codes_outside(subject, samples), ""):
        return judge.failed(
            outside,
            hint="map values that training did not have to a reserved code in encode; compare the "
            "vocabulary, and whether codes start at 0 or 1, with the embedding's size",
        )
    if misused := next(find_misused_tables(subject), None):
        return judge.failed(misused[0], hint=misused[1])
    inputs = inputs_of(subject.train)
    if doubles := [name for name, tensor in inputs.items() if tensor.dtype == torch.float64]:
        return judge.warned(
            f"{', '.join(doubles)}: float64",
            hint="cast to float32 in encode: weights are float32, so float64 only doubles memory "
            "and time, or the model raises an error",
        )
    if pixels := [name for name, tensor in inputs.items() if _are_pixels(tensor)]:
        return judge.warned(
            f"{', '.join(pixels)}: floats that are whole numbers up to {BRIGHTEST:g}",
            hint="these are raw pixels: subtract the mean and divide by the standard deviation, "
            "both from fit(train)",
        )
    padding = {name: _padding(tensor) for name, tensor in inputs.items() if _is_sequence(tensor)}
    if wasted := {name: share for name, share in padding.items() if share > MOST_PADDING}:
        name = max(wasted, key=lambda each: wasted[each])
        return judge.warned(
            f"{wasted[name]:.0%} of {name} is padding",
            hint="most of the compute goes into padding: shorten the sequence, or pack several "
            "texts into one",
            padding=padding,
        )
    shown = ", ".join(f"{share:.0%} of {name} is padding" for name, share in padding.items())
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in inputs.values()})
    return judge.passed(", ".join([*types, *([shown] if shown else [])]), padding=padding)


def _most_common(keys: "list[bytes] | list[int]") -> float:
    """Return the share of the most frequent key."""
    return float(pl.Series(keys).value_counts()["count"].to_numpy().max() / len(keys))


def _codes_outside(subject: Subject, samples: dict[str, Batch]) -> Iterator[str]:
    """Yield embeddings that get codes without a vector, with the sample that contains them."""
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
    """Recorder of an embedding's codes; codes without a vector do not stop the forward pass.

    Args:
        embedding: The layer whose inputs are recorded.
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
    """Return rows with the smallest and largest code of each column or sequence; at least one."""
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
    """Return the share of positions that repeat one code up to the end, minus the first."""
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
