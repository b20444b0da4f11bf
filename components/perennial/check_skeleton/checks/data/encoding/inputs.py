"""Check the model's inputs: examples that differ, whole sequences, tensors in a usable form.

Truncated texts and lists: each element of a row is exchanged in turn. If those after the first
few, or before the last few, never change the inputs, the sequence is truncated. If as many
positions of the tensor hold padding in every row, there was room for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.signals import (
    group_values,
    is_input_changed,
    measure_signal,
    probe_rows,
    read_labels,
)
from perennial.check_skeleton.made_up_inputs import write_cast
from perennial.check_skeleton.models import evaluated, run_model, watch_modules
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    SEQUENCE_LENGTH,
    Subject,
    are_equal,
    compute_example_keys,
    find_distinct_examples,
    find_padding,
    select_head,
    select_rows,
)
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, inputs_of

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
TWIN_ROWS = 64
MOST_COLUMNS = 64
CUT_ROWS, MOST_PLACES = 24, 64
FEWEST_PROBES = 16
WORDS = 3.0
# Tokens that mark a text's beginning and end.
MARKS = 2
# Most numbers encoded at once.
BUDGET = 20_000_000
READ_SHARE = 0.8
UNREAD_SHARE = 0.25
ROOMY_ROWS = 0.5
CLEAR_ERRORS, CLEAR_SHARE = 10.0, 0.1
NEXT = 0.5
Table = nn.Embedding | nn.EmbeddingBag
Parts = list[object]
Moves = NDArray[np.bool_]
FEW_ROWS, LOOKUP_ROWS = 128, 1024
MOST_FIELDS = 64
SHORTEST_SEQUENCE = 8
# A table with vectors for every field is as large as all fields together, plus codes for missing
# values and for values that the sample lacks.
ROOM, KEPT_CODES = 1.3, 4
# Sequences of one vocabulary have about the same range of codes at every position.
OTHER_RANGE = 0.5
TOKEN_SHARE = 0.01
FULL = 0.95


@check(
    "repeated_inputs",
    expects="about as many different inputs as different rows, no input shared by many rows, "
    "and no input a copy of another",
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
    for cut in find_cuts(subject):
        if cut.has_room:
            return judge.failed(
                f"{cut}, although as many positions of the tensor hold padding in every row",
                hint="the limit that cuts texts or lists differs from the tensor's length: one of "
                "the two is wrong, or left over from an experiment",
            )
        if lost := describe_lost_end(subject, cut):
            return (judge.failed if is_next_element(subject, cut) else judge.warned)(
                f"{cut}; {lost}",
                hint="the wrong end is cut off: keep the other one, `[-n:]` instead of `[:n]` for "
                "what was read or bought last. Correct if early prediction is intended",
            )
    return _judge_differences(judge, subject)


def _judge_differences(judge: Judge, subject: Subject) -> CheckResult:
    """Judge how many different rows become different inputs."""
    features = list(subject.task.columns.features)
    raw, encoded = subject.train_rows.select(features), inputs_of(subject.train)
    different, left = raw.n_unique(), len(find_distinct_examples(encoded))
    if left == 1:
        return judge.skipped("all inputs are the same: see `input_scale`")
    shown = f"{different} different rows became {left} different inputs"
    # The share of the most frequent input, beyond that of the most frequent row.
    most, usual = (
        int(each.value_counts()["count"].to_numpy().max())
        for each in (pl.Series(compute_example_keys(encoded)), raw.hash_rows())
    )
    stand_in = (most - usual) / raw.height
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


@check(
    "input_form",
    expects="codes for which every embedding has a vector, fields with their own vectors, "
    f"no float64, no pixels from 0 to {BRIGHTEST:g}, at most {MOST_PADDING:.0%} padding",
    source="guides: look at dtype, range and padding right before the model",
    needs_losses=False,
)
def check_input_form(subject: Subject, judge: Judge) -> CheckResult:
    """Check that codes fit the embeddings, types fit the model, and most positions are used."""
    samples = {"training": subject.train, "validation": subject.validation}
    if outside := next(_find_codes_outside(subject, samples), ""):
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
            hint="weights are float32, so float64 doubles memory and time, or the model raises an "
            "error: write at the end of encode, before it returns the batch: "
            + "; ".join(write_cast(name, "float") for name in doubles),
        )
    if pixels := [
        name
        for name, tensor in inputs.items()
        if tensor.is_floating_point() and tensor.ndim >= 3
        if float(tensor.min()) >= 0 and DARK < float(tensor.max()) <= BRIGHTEST
        if bool((tensor == tensor.round()).all())
    ]:
        return judge.warned(
            f"{', '.join(pixels)}: floats that are whole numbers up to {BRIGHTEST:g}",
            hint="these are raw pixels: subtract the mean and divide by the standard deviation, "
            "both from fit(train)",
        )
    padding = {
        name: _measure_padding(tensor)
        for name, tensor in inputs.items()
        if not tensor.is_floating_point() and tensor.dtype != torch.bool
        if tensor.ndim == 2 and tensor.shape[1] >= SEQUENCE_LENGTH
    }
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


def _find_codes_outside(subject: Subject, samples: dict[str, Batch]) -> Iterator[str]:
    """Yield embeddings that get codes without a vector, with the sample that contains them."""
    model = evaluated(subject.build_model())
    for sample, batch in samples.items():
        codes, sizes = dict[str, list[Tensor]](), {}
        extremes = select_rows(batch, _find_extremes(inputs_of(batch)))
        for name, table, some in _list_lookups(model, extremes):
            codes.setdefault(name, []).append(some.flatten())
            sizes[name] = table.num_embeddings
        for name, parts in codes.items():
            low, high = (int(each) for each in torch.cat(parts).aminmax())
            if low < 0 or high >= sizes[name]:
                run = f"codes run from {low} to {high} in the {sample} sample"
                yield f"{name} has {sizes[name]} vectors, {run}"


def _list_lookups(model: nn.Module, batch: Batch) -> list[tuple[str, Table, Tensor]]:
    """Return each lookup of a pass: name, table, codes; missing vectors do not stop the pass."""
    found: list[tuple[str, Table, Tensor]] = []

    def note(name: str, table: Table, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not given or not given[0].numel():
            return None
        found.append((name or "the embedding", table, given[0]))
        return (given[0].clamp(0, table.num_embeddings - 1), *given[1:])

    with watch_modules(model, note, kinds=Table, is_before=True):
        run_model(model, batch)
    return found


def _find_extremes(inputs: Batch) -> Tensor:
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


def _measure_padding(tensor: Tensor) -> float:
    """Return the share of positions that repeat one code up to the end, minus the first."""
    found = find_padding(tensor)
    if found is not None and found.is_left:
        tensor = tensor.flip(1)
    is_code = tensor == tensor[:, -1].mode().values
    after = is_code.flip(1).cumprod(dim=1).sum(dim=1)
    before = int(is_code.sum()) - int(after.sum())
    if before > PADDING_WITHIN * (tensor.numel() - int(after.sum())):
        return 0.0
    return float((after - 1).clamp_min(0).sum()) / tensor.numel()


def find_twin_inputs(subject: Subject) -> tuple[str, str, str] | None:
    """Find two inputs that are equal in every row, and a feature that no input depends on."""
    varied = {n: t for n, t in inputs_of(subject.train).items() if bool((t != t[:1]).any())}
    pairs = combinations(varied, 2)
    twins = next((pair for pair in pairs if are_equal(varied[pair[0]], varied[pair[1]])), None)
    rows, label = subject.train_rows.head(TWIN_ROWS), subject.task.columns.label
    for name in list(subject.task.columns.features)[:MOST_COLUMNS] if twins else ():
        values = rows[name]
        if name == label or (not values.dtype.is_nested() and values.n_unique() < 2):
            continue
        moved = pl.concat([values[1:], values[:1]])
        if twins and not is_input_changed(subject, rows, rows.with_columns(moved)):
            return (*twins, name)
    return None


@dataclass(frozen=True)
class Cut:
    """A column whose sequences are truncated at one end."""

    column: str  # its name
    kept: int  # how many elements reach the inputs
    is_front: bool  # whether these are the first
    unread: float  # share of the elements whose exchange changed nothing
    has_room: bool  # whether the tensor has room, as padding in every row, for what is cut
    behind: tuple[str, ...] = ()  # columns whose elements stand before its own, and count

    def __str__(self) -> str:
        return (
            f"only the {'first' if self.is_front else 'last'} {self.kept} elements of "
            f"{' and '.join((*self.behind, self.column))} are read, {self.unread:.0%} of "
            f"{self.column} are not"
        )


def find_cuts(subject: Subject) -> Iterator[Cut]:
    """Find truncated texts and lists among the features and the label."""
    label, texts = subject.task.columns.label, list[pl.Series]()
    for name in dict.fromkeys([*subject.task.columns.features, label]):
        column = subject.train_rows[name]
        kind = column.dtype
        is_list = isinstance(kind, pl.List | pl.Array) and not kind.inner.is_nested()
        is_single = name == label and subject.train[LABEL].ndim < 2
        if column.null_count() or is_single or not (is_list or kind == pl.String):
            continue
        try:
            found = _find_cut(subject, column, of_label=name == label)
            if found is None and kind == pl.String and texts and name != label:
                # Texts may stand behind each other in one tensor, as in BERT's pairs.
                found = _find_cut(subject, column, of_label=False, behind=texts)
        except Exception:  # a task may take no elements of other rows
            continue
        if found:
            yield found
        if kind == pl.String:
            texts.append(column)


def describe_lost_end(subject: Subject, cut: Cut) -> str:
    """Describe the cut element's signal for the label, if far above that of all kept ones."""
    if not read_labels(subject):
        return ""
    rows, labels = probe_rows(subject)
    parts = [_split_parts(each) for each in rows[cut.column].to_list()]

    def explained(place: int) -> float:
        held = [str(each[place]) if -len(each) <= place < len(each) else "" for each in parts]
        signal = measure_signal(group_values(pl.Series(held)), labels)
        return signal.share if signal.errors > CLEAR_ERRORS else 0.0

    ends = range(cut.kept) if cut.is_front else range(-cut.kept, 0)
    lost, kept = explained(-1 if cut.is_front else 0), max(explained(place) for place in ends)
    if lost < CLEAR_SHARE or lost < 2 * kept:
        return ""
    which = "last" if cut.is_front else "first"
    return (
        f"the {which} one explains {lost:.1%} of the label's variance, those that are read at most "
        f"{kept:.1%}"
    )


def is_next_element(subject: Subject, cut: Cut) -> bool:
    """Whether the label is the element after the last one, which is cut off.

    In early prediction from the first elements, the label is something else, or the element right
    after those that are read.
    """
    rows, label = subject.train_rows, subject.train_rows[subject.task.columns.label]
    lists = rows[cut.column].to_list()
    if not cut.is_front or isinstance(lists[0], str):
        return False
    known = {element for each in lists for element in each}
    long = [(each, own) for each, own in zip(lists, label, strict=True) if len(each) > cut.kept]
    behind = np.mean([own == each[cut.kept] for each, own in long]) if long else 1.0
    return bool(np.mean([own in known for own in label]) > NEXT and behind < NEXT)


def _split_parts(value: "str | Sequence[object]", by_word: bool = False) -> Parts:
    return list(value.split(" ") if isinstance(value, str) and by_word else value)


def _find_cut(
    subject: Subject, column: pl.Series, *, of_label: bool, behind: Sequence[pl.Series] = ()
) -> Cut | None:
    """Return where a column's sequences are truncated, counted from the first of `behind`."""
    is_text = column.dtype == pl.String
    by_word = is_text and float(np.mean([each.count(" ") for each in column])) >= WORDS
    parts = [_split_parts(each, by_word) for each in column.to_list()]
    before = np.zeros(len(parts), dtype=np.int64)
    for text in behind:
        before += [len(_split_parts(each, by_word)) for each in text.to_list()]
    probes, rows, changed = [], [], []
    # Some of the longest rows, and some of all, none of them empty.
    lengths = before + [len(each) for each in parts]
    order = [int(place) for place in np.argsort(-lengths, kind="stable") if parts[place]]
    half = CUT_ROWS // 2
    chosen = dict.fromkeys([*order[:half], *order[:: max(len(order) // half, 1)]])
    for index in list(chosen)[:CUT_ROWS]:
        own, other = parts[index], parts[(index + 1) % len(parts)]
        for place in np.unique(np.linspace(0, len(own) - 1, MOST_PLACES).astype(int)).tolist():
            spare = [*other[place : place + 1], *other, *own]
            if new := [each for each in spare if each != own[place]]:
                probes.append((before[index] + place, len(own) - 1 - place))
                rows.append(index)
                changed.append([*own[:place], new[0], *own[place + 1 :]])
    size = sum(each[0].numel() for each in subject.train.values())
    most = BUDGET // max(size, 1)
    if len(probes) < FEWEST_PROBES or most < FEWEST_PROBES:
        return None
    moved = _find_moved(
        subject, column, rows[:most], changed[:most], by_word=by_word, of_label=of_label
    )
    flat = [each.reshape(len(each), -1).any(axis=1) for each in moved.values()]
    read: Moves = np.any(np.stack(flat), axis=0)
    places = np.array(probes)[:most]
    # Of the last of several texts, all but the first words may be lost.
    if read.sum() < (FEWEST_PROBES // 2 if behind else FEWEST_PROBES):
        return None
    if (~read).mean() < UNREAD_SHARE:
        return None
    for is_front, place in ((True, places[:, 0]), (False, places[:, 1])):
        kept = int(place[read].max()) + 1
        is_read = float(np.mean(read[place < kept])) > READ_SHARE
        if is_read and float(np.mean(place[~read] >= kept)) > READ_SHARE:
            room = max(_count_room(subject, name, each, kept) for name, each in moved.items())
            if kept == 1 and is_text and not of_label:
                room = 0  # the first letter of a code is often taken
            is_roomy = (lengths[lengths > kept] - kept <= room).mean() >= ROOMY_ROWS
            before_it = tuple(each.name for each in behind)
            unread = float((~read).mean())
            return Cut(column.name, kept, is_front, unread, bool(is_roomy), before_it)
    return None


def _find_moved(
    subject: Subject,
    column: pl.Series,
    rows: list[int],
    changed: list[Parts],
    *,
    by_word: bool,
    of_label: bool,
) -> dict[str, Moves]:
    """Return tensor → the numbers that changed, for each exchange of one element."""
    before = subject.train_rows[rows]
    glue = " " if by_word else ""
    is_text = column.dtype == pl.String
    values = [glue.join(map(str, each)) for each in changed] if is_text else changed
    after = before.with_columns(pl.Series(column.name, values, dtype=column.dtype))
    one, two = subject.task.encode(before), subject.task.encode(after)
    names = [LABEL] if of_label else list(inputs_of(one))
    return {name: (one[name] != two[name]).numpy() for name in names}


def _count_room(subject: Subject, name: str, moved: Moves, kept: int) -> int:
    """Count positions at one end that are padding in every row, one position per element."""
    tensor, room = subject.train[name], 0
    for axis in range(1, min(tensor.ndim, 3)):
        flat = tensor.movedim(axis, 1).reshape(len(tensor), tensor.shape[axis], -1)
        places = np.moveaxis(moved, axis, 1).reshape(len(moved), tensor.shape[axis], -1).any(axis=2)
        if not places.any() or (places.sum(axis=1) > 1).any():
            continue
        for ordered in (flat, flat.flip(1)):
            is_padding = (ordered == ordered[0, 0]).all(dim=2).all(dim=0).long()
            free = int(is_padding.cumprod(dim=0).sum())
            if kept <= tensor.shape[axis] - free <= kept + MARKS:
                room = max(room, free)
    return room


def find_misused_tables(subject: Subject) -> Iterator[tuple[str, str]]:
    """Yield problems with the codes of each table, each with a hint."""
    lookups = _record_lookups(subject, FEW_ROWS)
    if any(
        2 <= codes.shape[1] <= MOST_FIELDS and int(codes.max()) + 1 < FULL * table.num_embeddings
        for _, table, codes in lookups
    ):
        # The codes leave much of a table unused, but few rows do not show all of each field.
        lookups = _record_lookups(subject, LOOKUP_ROWS)
    for name, table, codes in lookups:
        if shared := _describe_shared_fields(table, codes):
            yield (
                f"{name}: {shared}",
                "codes of every field begin at 0 in a table with room for all fields one after "
                "another, so different values share a vector: add each field's offset",
            )
        if untrained := _describe_untrained_token(table, codes):
            yield (
                f"{name}: {untrained}",
                "padding_idx is a token that texts contain: its vector stays zero, and that of "
                "padding is learned. Set padding_idx to the code that pads sequences",
            )


def _record_lookups(subject: Subject, rows: int) -> list[tuple[str, nn.Embedding, Tensor]]:
    """Return each table with the first codes [B, T] looked up in it for so many examples."""
    first: dict[str, tuple[str, nn.Embedding, Tensor]] = {}
    batch = select_head(subject.train, min(rows, subject.task.scoring_rows))
    for name, table, codes in _list_lookups(evaluated(subject.build_model()), batch):
        if isinstance(table, nn.Embedding) and codes.ndim == 2:
            first.setdefault(name, (name, table, codes))
    return list(first.values())


def _describe_shared_fields(table: nn.Embedding, codes: Tensor) -> str:
    """Describe fields of different ranges whose codes all begin at 0; empty if none."""
    fields = codes.shape[1]
    if not 2 <= fields <= MOST_FIELDS or len(codes) < LOOKUP_ROWS // 4:
        return ""
    sizes, lowest = codes.amax(dim=0) + 1, int(codes.amin(dim=0).max())
    total = int(sizes.sum())
    is_table_of_all = total <= table.num_embeddings <= ROOM * total + KEPT_CODES * fields
    are_unlike = float(sizes.min()) <= OTHER_RANGE * float(sizes.max())
    if not (is_table_of_all and are_unlike and lowest <= 1):
        return ""
    shown = ", ".join(map(str, sizes.tolist()))
    used = f"of which {len(np.unique(codes.numpy()))} are used"
    return f"{table.num_embeddings} vectors for {fields} fields of {shown} codes, {used}"


def _describe_untrained_token(table: nn.Embedding, codes: Tensor) -> str:
    """Describe a token that is padding_idx although another code pads texts; empty if none."""
    if table.padding_idx is None or codes.shape[1] < SHORTEST_SEQUENCE:
        return ""
    padding = find_padding(codes)
    if padding is None or padding.code == table.padding_idx:
        return ""
    content = codes[~padding.covers(codes.shape[1])]
    share = float((content == table.padding_idx).double().mean())
    if share < TOKEN_SHARE:
        return ""
    return (
        f"{share:.0%} of the tokens have the code {table.padding_idx}, its padding_idx, while "
        f"sequences are padded with {padding.code}"
    )
