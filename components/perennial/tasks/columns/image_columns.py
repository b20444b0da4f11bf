"""Image columns: encoded pictures or lists of numbers → standardised pixels of one form."""

import math
from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section
from perennial.data.pictures import decode_picture, is_coloured

FIT_ROWS = 2_048  # values read at once, as they are stored
FIT_BYTES = 64 * 1024 * 1024  # of decoded pictures at once; their sums need a few times as much
_IMAGE_TYPES = ("Binary", "List", "Array")


class ImageState(Section):
    """The form of the training pictures, and mean and deviation of each channel's pixels."""

    height: int = 0
    width: int = 0
    channels: int = 1
    is_encoded: bool = True
    """Whether they come as PNG or JPEG, not as numbers."""
    is_scaled: bool = False
    """Whether those of another size are scaled to this one."""
    means: tuple[float, ...] = ()
    deviations: tuple[float, ...] = ()

    def standardised(self, pixels: NDArray[np.float32]) -> NDArray[np.float32]:
        """Pixels [B, H, W, C] → inputs [B, C, H, W]; missing ones (NaN) become the mean, 0."""
        means, deviations = (
            np.asarray(each, dtype=np.float32) for each in (self.means, self.deviations)
        )
        values = np.nan_to_num((pixels - means) / deviations, copy=False)
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))

    def shown(self, values: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Inputs [C, H, W] → pixels [H, W] or [H, W, 3] for people to look at.

        Encoded pictures come back as they were; the range of numbers is stretched over 8 bits.
        """
        pixels = values.transpose(1, 2, 0) * np.array(self.deviations) + np.array(self.means)
        if not self.is_encoded:
            pixels = (pixels - pixels.min()) / max(float(np.ptp(pixels)), 1e-12) * 255
        rounded: NDArray[np.uint8] = np.round(pixels).clip(0, 255).astype(np.uint8)
        return rounded[:, :, 0] if self.channels == 1 else rounded


def image_column(columns: TaskColumns, name: str | None) -> str:
    """Return the feature column that holds the pictures.

    Raises:
        BadDataError: it is not the only feature, or holds something else.
    """
    # A caption is input and label at once.
    features = {key: kind for key, kind in columns.features.items() if key != columns.label}
    name = name or next(iter(features), "")
    if list(features) != [name]:
        raise BadDataError(
            "the task needs exactly one feature, the picture",
            evidence=f"model.options.image is {name!r}, features: {', '.join(features)}",
            action="list the picture's column alone under data.features, or the others under "
            "data.meta",
        )
    if not features[name].startswith(_IMAGE_TYPES):
        raise BadDataError(
            f"the column {name!r} does not contain pictures",
            evidence=f"it is {features[name]}",
            action="write PNG or JPEG bytes, or lists of numbers with model.options.shape",
        )
    return name


def fit_images(
    train: pl.LazyFrame,
    column: str,
    shape: tuple[int, ...] = (),
    size: tuple[int, int] | None = None,
    channels: int | None = None,
) -> ImageState:
    """Learn form and statistics of the training pictures, with a part in memory at a time.

    Pictures that come as flat lists have a `shape`: height, width and maybe channels. Encoded
    pictures are scaled to a `size`, height and width, and converted to so many `channels`.

    Raises:
        BadDataError: the split has no picture, or pictures differ in form.
    """
    state: ImageState | None = None
    sums: list[NDArray[np.float64]] = []
    squares: list[NDArray[np.float64]] = []
    for part in _parts(train.select(column)):
        if state is None:
            state = _first_form(part, shape, size, channels)
        is_grey = state.is_encoded and channels is None
        # They are in colour if one of them is: grey ones lose nothing by it.
        if is_grey and any(map(is_coloured, part)):
            return fit_images(train, column, shape, size, 3)
        rows = max(FIT_BYTES // (4 * state.height * state.width * state.channels), 1)
        for start in range(0, len(part), rows):
            pixels = read_images(part.slice(start, rows), state).astype(np.float64)
            values = pixels.reshape(len(pixels), -1, state.channels)
            # Per picture: the cut into parts must not move the last bits of the sums.
            sums.append(values.sum(axis=1))
            squares.append((values**2).sum(axis=1))
    if state is None:
        raise BadDataError(
            f"the column {column!r} contains no picture in the training split",
            action="check the source and the split",
        )
    count = sum(map(len, sums)) * state.height * state.width
    means, seconds = (
        [math.fsum(channel) / count for channel in np.concatenate(each).T]
        for each in (sums, squares)
    )
    variances = [second - mean**2 for mean, second in zip(means, seconds, strict=True)]
    deviations = [math.sqrt(each) if each > 1e-12 else 1.0 for each in variances]
    return state.model_copy(update={"means": tuple(means), "deviations": tuple(deviations)})


def read_images(column: pl.Series, state: ImageState) -> NDArray[np.float32]:
    """Return pixels [B, H, W, C]; NaN where the value is missing."""
    form = (len(column), state.height, state.width, state.channels)
    if not state.is_encoded:
        return _arrays(column, state.height * state.width * state.channels).reshape(form)
    pixels = np.full(form, np.nan, dtype=np.float32)
    for row, content in enumerate(column):
        if content is not None:
            pixels[row] = _decoded(content, column.name, row, state)
    return pixels


def _parts(pictures: pl.LazyFrame) -> Iterator[pl.Series]:
    """Yield the values that are not missing, in order."""
    for batch in pictures.collect_batches(chunk_size=FIT_ROWS, maintain_order=True):
        for start in range(0, batch.height, FIT_ROWS):
            part = batch.slice(start, FIT_ROWS).to_series().drop_nulls()
            if len(part):
                yield part


def _first_form(
    part: pl.Series,
    shape: tuple[int, ...],
    size: tuple[int, int] | None,
    channels: int | None,
) -> ImageState:
    """Return the form of all pictures: the contract's, else that of the first one, in grey."""
    if part.dtype == pl.Binary:
        if shape:
            raise _useless(
                "shape", f"{part.name!r} contains encoded pictures, which have their own"
            )
        height, width = (
            size or decode_picture(part[0], f"the first picture in {part.name!r}").shape[:2]
        )
        is_scaled, channels = size is not None, channels or 1
        return ImageState(height=height, width=width, channels=channels, is_scaled=is_scaled)
    if size or channels:
        raise _useless(
            "size" if size else "channels",
            f"{part.name!r} contains numbers, not encoded pictures",
        )
    own = part.dtype.shape if isinstance(part.dtype, pl.Array) else ()
    shape = shape or own
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise BadDataError(
            f"the pictures in {part.name!r} have the shape {list(shape)}",
            evidence=f"the column is {part.dtype}",
            action="set model.options.shape to [height, width], or [height, width, 3] for colour",
        )
    height, width, channels = (*shape, 1)[:3]
    return ImageState(height=height, width=width, channels=channels, is_encoded=False)


def _useless(option: str, why: str) -> BadDataError:
    return BadDataError(f"model.options.{option} has no effect: {why}", action="remove it")


def _arrays(column: pl.Series, size: int) -> NDArray[np.float32]:
    """Return lists or arrays of numbers as one array [B, size]."""
    try:
        if isinstance(column.dtype, pl.List):
            column = column.list.to_array(size)
        pixels = np.asarray(column.to_numpy(), dtype=np.float32).reshape(len(column), size)
    except (pl.exceptions.PolarsError, TypeError, ValueError) as error:
        raise BadDataError(
            f"pictures in {column.name!r} are not {size} numbers each",
            evidence=str(error),
            action="write flat lists, or arrays, of one length; model.options.shape sets how they "
            "are read",
        ) from error
    is_missing = column.is_null().to_numpy()
    if not np.isfinite(pixels[~is_missing]).all():
        raise BadDataError(
            f"pictures in {column.name!r} contain numbers that are missing or not finite",
            action="fix them at the source; `max = 0` under "
            f'[expectations.columns."{column.name}.missing"] stops such a run before it trains',
        )
    return pixels


def _decoded(content: bytes, column: str, row: int, state: ImageState) -> NDArray[np.uint8]:
    """Decode one picture to pixels [H, W, C]."""
    pixels = decode_picture(content, f"the picture in row {row} of its batch, in {column!r},")
    picture = Image.fromarray(pixels).convert("L" if state.channels == 1 else "RGB")
    size = (state.width, state.height)
    if picture.size != size:
        if not state.is_scaled:
            raise BadDataError(
                f"pictures in {column!r} differ in size",
                evidence=f"row {row} of its batch has {pixels.shape[0]} x {pixels.shape[1]} "
                f"pixels, the first one of training {state.height} x {state.width}",
                action="set model.options.size to scale them all to one size",
            )
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(picture).reshape(state.height, state.width, state.channels)
