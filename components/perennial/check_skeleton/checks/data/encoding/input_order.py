"""Find inputs in a wrong order: pictures read along other axes, tables that were reshaped.

A picture read in a wrong order, such as rows for columns, still trains without an error, and the
preview of small pictures looks like noise anyway. But the row's own picture, read in that wrong
order, correlates with the tensors much better than the original.

`reshape` and `view` change the shape but keep the order of the numbers. A picture whose channels
were moved this way is scrambled: read in its original shape, it is far smoother. A table of points
whose axes were exchanged this way has the row's numbers in the row's order. What one moment of a
recording decides, such as all bands of a spectrum, is scattered over both axes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import permutations

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.encoding.torn_series import (
    describe_torn_series,
    is_patched,
)
from perennial.check_skeleton.checks.data.signals import read_lists
from perennial.check_skeleton.models import evaluated, run_model, watch_modules
from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject, select_head
from perennial.contracts.errors import BadDataError
from perennial.data.pictures import decode_picture
from perennial.engine.task import Batch, inputs_of

COMPARED = 16
# Another order must agree almost fully, with a tenth of the original's disagreement: resizing and
# colour changes affect all orders alike, and symmetric pictures favour none.
ALIKE = 0.95
BETTER = 0.1
# Two pictures that differ by rounding only.
SAME = 0.995
VIEWED = "with `view` or `reshape` instead of `permute`"

Order = Callable[[Floats], Floats]
ROWS, MODEL_ROWS = 512, 128
FEWEST_ROWS = 16
# Most numbers compared at once.
BUDGET = 5_000_000
FEWEST_PLACES = 4
MOST_LISTS, MOST_ORDERED = 16, 3
CHANNELS = (2, 3, 4)
SHORTEST_SIDE = 4
# Neighbours in a scrambled picture differ several times as much as in the original.
SMOOTHER = 0.5
# Grain is equally rough in each order, so less is enough where no picture says otherwise.
SLIGHTLY_SMOOTHER = 0.9
NEARLY_ALL = 0.9
SAME_ORDER = 0.999
OTHER = 0.9
SHORTEST_RECORDING, MOMENTS = 32, 8


def find_misreading(subject: Subject, rows: pl.DataFrame, batch: Batch) -> tuple[str, str] | None:
    """Return the wrong order in which the pictures of these rows were encoded, and the evidence."""
    agreements: dict[str, list[float]] = {}
    for index in range(min(rows.height, COMPARED)):
        if (shown := subject.task.picture(batch, index)) is None:
            return None
        if (source := _read_source(subject, rows.row(index, named=True), shown)) is None:
            return None
        for order, read in _list_orders(source.shape).items():
            agreements.setdefault(order, []).append(_correlate(read, source, shown))
    medians = {order: float(np.median(values)) for order, values in agreements.items()}
    own = medians.pop("", 1.0)
    best = max(medians, key=lambda order: medians[order], default="")
    if own >= SAME or not best or medians[best] < ALIKE:
        return None
    if 1 - medians[best] > BETTER * (1 - own):
        return None
    return best, (
        f"the tensors agree with the rows' pictures read {best} (correlation "
        f"{medians[best]:.2f}), not with the originals ({own:.2f})"
    )


def _read_source(
    subject: Subject, row: Mapping[str, object], shown: NDArray[np.uint8]
) -> Floats | None:
    """Return the row's only picture in the shape of `shown`; None if it has none, or two."""
    found = []
    for name in subject.task.columns.features:
        value = row[name]
        if isinstance(value, bytes):
            try:
                mode, size = "RGB" if shown.ndim == 3 else "L", (shown.shape[1], shown.shape[0])
                picture = Image.fromarray(decode_picture(value)).convert(mode)
                scaled = picture.resize(size, Image.Resampling.BILINEAR)  # a copy if it fits
                found.append(np.asarray(scaled, dtype=np.float64))
            except BadDataError:  # the picture is made from something else, such as sound
                return None
        elif isinstance(value, list) and len(value) == shown.size:
            found.append(np.asarray(value, dtype=np.float64).reshape(shown.shape))
    return found[0] if len(found) == 1 else None


def _list_orders(shape: tuple[int, ...]) -> dict[str, Order]:
    """Return the original order, under an empty name, and orders that mistakes cause."""
    height, width = shape[:2]
    orders: dict[str, Order] = {
        "": lambda picture: picture,
        "upside down": lambda picture: picture[::-1],
        "mirrored": lambda picture: picture[:, ::-1],
    }
    if height == width:
        orders["with height and width exchanged"] = lambda picture: picture.swapaxes(0, 1)
    else:
        other = (width, height, *shape[2:])
        orders[VIEWED] = lambda picture: picture.reshape(other).swapaxes(0, 1)
    if len(shape) == 3:
        orders["with red and blue exchanged"] = lambda picture: picture[:, :, ::-1]
        orders[VIEWED] = lambda picture: picture.reshape(3, height, width).transpose(1, 2, 0)
    return orders


def _correlate(read: Order, source: Floats, shown: NDArray[np.uint8]) -> float:
    """Return the correlation between a picture, read in an order, and the picture shown.

    Numbers that came from one channel and went to one channel are compared with each other alone:
    channels are standardised apart, in whichever order they are. 1 for flat pictures.
    """
    channels = np.zeros(source.shape)
    channels[:] = np.arange(3) if source.ndim == 3 else 0
    came_from, picture = read(channels), read(source)
    products: list[Floats] = []
    for origin in np.unique(came_from):
        for target in np.unique(channels):
            chosen = (came_from == origin) & (channels == target)
            first, second = picture[chosen], shown[chosen].astype(np.float64)
            if len(first) and first.std() and second.std():
                products.append(
                    (first - first.mean()) * (second - second.mean()) / first.std() / second.std()
                )
    return float(np.concatenate(products).mean()) if products else 1.0


def describe_torn_input(subject: Subject) -> str:
    """Describe the input that was reshaped instead of permuted; empty if none."""
    batch = inputs_of(select_head(subject.train, ROWS))
    for name, tensor in (*batch.items(), *_record_first_layer(subject, batch)):
        numbers = tensor[: max(BUDGET // max(tensor[0].numel(), 1), FEWEST_ROWS)].double().numpy()
        if len(numbers) < FEWEST_ROWS or not np.isfinite(numbers).all():
            continue
        if numbers.ndim == 4 and (found := _describe_torn_picture(numbers)):
            return f"{name} is {found}"
        judged = (_describe_torn_table, _describe_torn_list, describe_torn_series)
        if numbers.ndim == 3 and (
            found := _describe_torn_codes(numbers)
            or next(filter(None, (each(subject, numbers) for each in judged)), "")
        ):
            return f"{name} is {found}"
    return _describe_torn_recording(subject)


class _SeenError(Exception):
    """The layer's input is recorded; the rest of the model need not run."""


def _record_first_layer(subject: Subject, batch: Batch) -> list[tuple[str, Tensor]]:
    """Return the input of the first layer with axes, if the model reshaped its own inputs."""
    model, taken = evaluated(subject.build_model()), list[tuple[str, Tensor]]()

    def note(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            taken.append((f"the input of {name or 'the model'}", given[0]))
        raise _SeenError

    kinds = nn.Conv1d | nn.Conv2d | nn.RNNBase
    with watch_modules(model, note, kinds=kinds, is_before=True), suppress(_SeenError):
        run_model(model, select_head(batch, MODEL_ROWS))
    sizes = {tuple(each.shape[1:]): each[0].numel() for each in batch.values()}
    return [
        (name, tensor)
        for name, tensor in taken
        if tuple(tensor.shape[1:]) not in sizes
        and tensor[0].numel() in sizes.values()
        and len(tensor) == min(MODEL_ROWS, subject.num_rows())
    ]


def _describe_torn_picture(pictures: Floats) -> str:
    """Describe another shape in which the pictures are far smoother; empty if none."""
    first, _, last = shape = pictures.shape[1:]
    if (first in CHANNELS) == (last in CHANNELS) or sorted(shape)[1] < SHORTEST_SIDE:
        return ""
    is_first = first in CHANNELS
    other = (*shape[1:], first) if is_first else (last, *shape[:2])
    own = _measure_roughness(pictures, 1 if is_first else 3)
    read = _measure_roughness(pictures.reshape(-1, *other), 3 if is_first else 1)
    varied = own > 0
    if varied.sum() < FEWEST_ROWS:
        return ""
    shares = read[varied] / own[varied]
    limit = SLIGHTLY_SMOOTHER if (shares < 1).all() else SMOOTHER
    if np.median(shares) > limit or (shares < 1).mean() < NEARLY_ALL:
        return ""
    own_axes, other_axes = (" x ".join(map(str, axes)) for axes in (shape, other))
    return (
        f"{own_axes}, but its numbers have the order {other_axes} of a picture: there, neighbours "
        f"differ by {np.median(shares):.0%} as much"
    )


def _measure_roughness(pictures: Floats, channels: int) -> Floats:
    """Return each picture's mean squared difference between neighbours."""
    axes = [axis for axis in (1, 2, 3) if axis != channels]
    parts = [np.square(np.diff(pictures, axis=axis)).mean(axis=(1, 2, 3)) for axis in axes]
    return np.asarray(np.sum(parts, axis=0))


def _describe_torn_table(subject: Subject, encoded: Floats) -> str:
    """Describe raw values [P, Q] that fill an input of Q x P in their old order; empty if none."""
    rows, wide = encoded.shape[1:]
    for names, places, raw in _read_tables(subject.train_rows.head(len(encoded))):
        high, across = raw.shape[1:]
        if wide != high or across > rows or high == across:
            continue
        own, size = encoded[places], high * across
        kept = _correlate_places(raw, own.reshape(len(own), -1)[:, :size])
        moved = _correlate_places(raw.swapaxes(1, 2), own[:, :across])
        is_torn = (kept > SAME_ORDER).mean() > NEARLY_ALL and np.median(moved) < OTHER
        if is_torn and not is_patched(subject, encoded):
            return f"{across} x {high}, but holds {names} in the order {high} x {across}"
    return ""


def _describe_torn_codes(encoded: Floats) -> str:
    """Describe one-hot codes whose ones lie apart unless read in the other shape; empty if none."""
    high, wide = encoded.shape[1:]
    is_code = ((encoded == 0) | (encoded == 1)).mean() > NEARLY_ALL
    if not is_code or encoded.min() < 0 or high == wide or min(high, wide) < 2:
        return ""
    other = encoded.reshape(-1, wide, high)
    own, read = (
        # An unknown letter may have a part of each code.
        max(float((codes.sum(axis=axis) < 1.01).mean()) for axis in (1, 2))
        for codes in (encoded, other)
    )
    if read < SAME_ORDER or own > OTHER:
        return ""
    return (
        f"{high} x {wide}, but holds one-hot codes in the order {wide} x {high}: as it is, "
        f"{1 - own:.0%} of the places have several"
    )


def _describe_torn_list(subject: Subject, encoded: Floats) -> str:
    """Describe lists of alternating channels that were cut into as many parts as there are times.

    Numbers of one channel are neighbours in time: far more alike than neighbours in the list. Empty
    if there are none.
    """
    high, wide = encoded.shape[1:]
    if (high % wide == 0 or wide % high == 0) and min(high, wide) not in CHANNELS:
        return ""  # steps of both lengths may be steps of one channel
    for column in subject.train_rows.head(len(encoded)):
        raw = read_lists(column)
        if raw is None or raw.shape != (len(encoded), high * wide):
            continue
        for across, own in ((wide, encoded), (high, encoded.swapaxes(1, 2))):
            rows = [each.reshape(len(raw), -1).T for each in (raw, own)]
            # Each place, or each row, may be standardised.
            found = _correlate_places(raw, own), _correlate_places(*rows)
            if all((each > SAME_ORDER).mean() < NEARLY_ALL for each in found):
                continue
            other = high * wide // across
            beside, within, between = (_measure_steps(raw, step) for step in (1, other, across))
            rougher = np.minimum(beside, between)
            share = np.median(within / np.maximum(rougher, 1e-12))
            if share < SMOOTHER and (within < rougher).mean() > NEARLY_ALL:
                return (
                    f"{high} x {wide}, but {column.name} alternates between {other} series: "
                    f"numbers {other} places apart differ by "
                    f"{np.median(within / np.maximum(between, 1e-12)):.0%} as much as those "
                    f"{across} apart"
                )
    return ""


def _measure_steps(values: Floats, step: int) -> Floats:
    """Return the mean squared difference of numbers so many places apart, by row."""
    found: Floats = np.square(values[:, step:] - values[:, :-step]).mean(axis=1)
    return found


def _describe_torn_recording(subject: Subject) -> str:
    """Describe an input [H, W] in which a list's moments are scattered; empty if there is none.

    One number of a list, such as a moment of a recording, changes whole rows or columns of what is
    computed by frames, as spectra are. If the changed places are scattered, but whole rows or
    columns of the same numbers in the shape [W, H], a reshape exchanged the axes.
    """
    row = subject.train_rows.head(1)
    for column in row.select(*subject.task.columns.features):
        moved = _change_moments(column)
        if moved is None:
            continue
        try:
            batch = subject.task.encode(pl.concat([row] * len(moved)).with_columns(moved))
        except Exception:  # a task may reject numbers that this check makes up
            continue
        for name, tensor in inputs_of(batch).items():
            numbers = tensor.double().numpy()
            numbers = numbers.reshape(
                len(numbers), *(side for side in numbers.shape[1:] if side > 1)
            )
            if numbers.ndim != 3 or numbers.shape[1] == numbers.shape[2]:
                continue
            high, wide = numbers.shape[1:]
            places = numbers[1:] != numbers[0]
            if not any(map(_is_band, places)) and all(
                _is_band(each.reshape(wide, high)) or _is_band(each.T.reshape(high, wide))
                for each in places
            ):
                return (
                    f"{name} is {high} x {wide}, but each moment of {column.name} decides "
                    f"scattered places: whole rows or columns if read as {wide} x {high}"
                )
    return ""


def _change_moments(column: pl.Series) -> pl.Series | None:
    """Return a list of numbers as it is and with one of its numbers at another end of its range."""
    kind, numbers = column.dtype, column.to_list()[0]
    if not isinstance(kind, pl.List | pl.Array) or not kind.inner.is_numeric():
        return None
    if numbers is None or None in numbers or len(numbers) < SHORTEST_RECORDING:
        return None
    low, high, changed = min(numbers), max(numbers), [numbers]
    for moment in np.linspace(0, len(numbers) - 1, MOMENTS + 2).astype(int)[1:-1]:
        is_high = numbers[moment] > (low + high) / 2
        changed.append([*numbers[:moment], low if is_high else high, *numbers[moment + 1 :]])
    return pl.Series(column.name, changed, dtype=kind)


def _is_band(places: Flags) -> bool:
    """Whether places [H, W] are some whole rows, or some whole columns, at most half of all."""
    rows, columns = places.any(axis=1), places.any(axis=0)
    return bool(
        (rows.all() or columns.all())
        and np.array_equal(places, np.outer(rows, columns))
        and 0 < places.mean() <= 0.5
    )


def _read_tables(rows: pl.DataFrame) -> Iterator[tuple[str, Codes, Floats]]:
    """Yield the rows' numbers of two axes, [N, P, Q], nested or in parallel columns."""
    lists = []
    for column in rows:
        kind = column.dtype
        if not isinstance(kind, pl.List | pl.Array) or column.null_count():
            continue
        if kind.inner.is_numeric():
            lists.append(column)
        elif not kind.inner.is_nested():
            continue  # flags, days or words
        elif (found := _make_table(column.to_list())) is not None:
            yield column.name, *found
    lengths: dict[tuple[int, ...], list[pl.Series]] = {}
    for column in lists:
        lengths.setdefault(tuple(map(len, column.to_list())), []).append(column)
    for group in lengths.values():
        if not 2 <= len(group) <= MOST_LISTS:
            continue
        for order in permutations(group) if len(group) <= MOST_ORDERED else [group]:
            aside = [list(each) for each in zip(*(each.to_list() for each in order), strict=True)]
            if (found := _make_table(aside)) is not None:
                names = ", ".join(each.name for each in order)
                yield names, *found
                yield names, found[0], found[1].swapaxes(1, 2)


def _make_table(values: list[list[list[float]]]) -> tuple[Codes, Floats] | None:
    """Return the rows of the most frequent shape, as numbers; None if too few have it."""
    shapes = [
        (len(each), len(each[0])) if each and len({*map(len, each)}) == 1 else (0, 0)
        for each in values
    ]
    common = max(set(shapes), key=shapes.count)
    places = np.array([place for place, shape in enumerate(shapes) if shape == common])
    if len(places) < FEWEST_ROWS or min(common) < 2:
        return None
    try:
        return places, np.array([values[place] for place in places], dtype=np.float64)
    except (TypeError, ValueError):  # missing values, or lists in lists in lists
        return None


def _correlate_places(raw: Floats, encoded: Floats) -> Floats:
    """Return the correlation over rows of each number with the one in its place, if both vary."""
    one, other = (each.reshape(len(each), -1) for each in (raw, encoded))
    one, other = (each - each.mean(axis=0) for each in (one, other))
    sizes = np.linalg.norm(one, axis=0) * np.linalg.norm(other, axis=0)
    varied = sizes > 1e-9
    found: Floats = np.abs((one * other).sum(axis=0)[varied]) / sizes[varied]
    return found if len(found) >= FEWEST_PLACES else np.zeros(1)
