"""Picture reading: whether the tensors right before the model show the rows' pictures.

A picture read in a wrong order, such as rows for columns, still trains without an error, and the
preview of small pictures looks like noise anyway. But the row's own picture, read in that wrong
order, correlates with the tensors much better than the original.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from perennial.check_skeleton.subject import Subject
from perennial.contracts.errors import BadDataError
from perennial.data.pictures import decode_picture
from perennial.engine.task import Batch

COMPARED = 16
# Another order must agree almost fully, with a tenth of the original's disagreement: resizing and
# colour changes affect all orders alike, and symmetric pictures favour none.
ALIKE = 0.95
BETTER = 0.1
# Two pictures that differ by rounding only.
SAME = 0.995
VIEWED = "with `view` or `reshape` instead of `permute`"

Pixels = NDArray[np.float64]
Order = Callable[[Pixels], Pixels]


@dataclass(frozen=True)
class Misreading:
    """A wrong order in which pictures were read.

    Attributes:
        order: A description of the order.
        agreement: Median correlation of the tensors with pictures read in this order.
        own: Median correlation with the original pictures.
    """

    order: str
    agreement: float
    own: float

    @property
    def is_scrambled(self) -> bool:
        """Whether neighbouring pixels are separated, which is worse than a mirror image."""
        return self.order == VIEWED

    def __str__(self) -> str:
        return (
            f"the tensors agree with the rows' pictures read {self.order} "
            f"(correlation {self.agreement:.2f}), not with the originals ({self.own:.2f})"
        )


def find_misreading(subject: Subject, rows: pl.DataFrame, batch: Batch) -> Misreading | None:
    """Find the wrong order in which the pictures of these rows were encoded, if any."""
    agreements: dict[str, list[float]] = {}
    for index in range(min(rows.height, COMPARED)):
        shown = subject.task.picture(batch, index)
        source = None if shown is None else _source(subject, rows.row(index, named=True), shown)
        if shown is None or source is None:
            return None
        for order, read in _orders(source.shape).items():
            agreements.setdefault(order, []).append(_agreement(read, source, shown))
    medians = {order: float(np.median(values)) for order, values in agreements.items()}
    own = medians.pop("", 1.0)
    best = max(medians, key=lambda order: medians[order], default="")
    if own >= SAME or not best or medians[best] < ALIKE:
        return None
    if 1 - medians[best] > BETTER * (1 - own):
        return None
    return Misreading(best, medians[best], own)


def _source(subject: Subject, row: Mapping[str, object], shown: NDArray[np.uint8]) -> Pixels | None:
    """Return the row's only picture in the shape of `shown`; None if it has none, or two."""
    found = []
    for name in subject.task.columns.features:
        value = row[name]
        if isinstance(value, bytes):
            try:
                found.append(_resized(decode_picture(value), shown))
            except BadDataError:  # the picture is made from something else, such as sound
                return None
        elif isinstance(value, list) and len(value) == shown.size:
            found.append(np.asarray(value, dtype=np.float64).reshape(shown.shape))
    return found[0] if len(found) == 1 else None


def _resized(pixels: NDArray[np.uint8], shown: NDArray[np.uint8]) -> Pixels:
    picture = Image.fromarray(pixels).convert("RGB" if shown.ndim == 3 else "L")
    size = (shown.shape[1], shown.shape[0])
    scaled = picture if picture.size == size else picture.resize(size, Image.Resampling.BILINEAR)
    return np.asarray(scaled, dtype=np.float64)


def _orders(shape: tuple[int, ...]) -> dict[str, Order]:
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


def _agreement(read: Order, source: Pixels, shown: NDArray[np.uint8]) -> float:
    """Return the correlation between a picture, read in an order, and the picture shown.

    Pixels that came from one channel and went to one channel are compared with each other alone:
    channels are standardised apart, in whichever order they are. 1 for flat pictures.
    """
    channels = np.zeros(source.shape)
    channels[:] = np.arange(3) if source.ndim == 3 else 0
    came_from, picture = read(channels), read(source)
    products: list[Pixels] = []
    for origin in np.unique(came_from):
        for target in np.unique(channels):
            chosen = (came_from == origin) & (channels == target)
            first, second = picture[chosen], shown[chosen].astype(np.float64)
            if len(first) and first.std() and second.std():
                products.append(
                    (first - first.mean()) * (second - second.mean()) / first.std() / second.std()
                )
    return float(np.concatenate(products).mean()) if products else 1.0
