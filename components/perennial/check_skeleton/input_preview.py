"""Input preview: a few examples as they enter the model, decoded for people to look at."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.check_skeleton.checks.data.augmenting import augmented, augments
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, Batch, Task, inputs_of

EXAMPLES = 8
PICTURE_PIXELS = 96


@dataclass(frozen=True)
class Preview:
    """The examples that the report shows.

    Attributes:
        header: `describe`'s keys.
        rows: One example each.
        tensors: Name, type, shape, smallest, mean and largest value of each tensor.
        pictures: An inline SVG of the task's pictures, or of an input that looks like them; else
            empty.
        augmented_rows: The same examples once augmented; empty for tasks that do not augment.
        augmented_pictures: Their pictures.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tensors: tuple[tuple[str, ...], ...]
    pictures: str = ""
    augmented_rows: tuple[tuple[str, ...], ...] = ()
    augmented_pictures: str = ""


def preview(subject: Subject) -> Preview:
    """Decode the examples of the overfitting check: different inputs, alternating labels."""
    batch = subject.balanced(EXAMPLES)
    examples = _decoded(subject.task, batch)
    # The label first: wide tables hide their last columns.
    keys = dict.fromkeys(key for example in examples for key in example)
    header = tuple(sorted(keys, key=lambda key: key not in (LABEL, subject.task.columns.label)))
    changed = _augmented(subject, batch)
    return Preview(
        header,
        _rows(examples, header),
        _tensor_table(subject.train),
        _pictures(subject.task, batch, "Images as the model receives them, with labels"),
        _rows(_decoded(subject.task, changed), header) if changed else (),
        _pictures(subject.task, changed, "The same images augmented, with labels"),
    )


def _augmented(subject: Subject, batch: Batch) -> Batch:
    """Return the examples after augmentation; empty where there is nothing to show."""
    if not augments(subject.task):
        return {}
    try:
        changed = augmented(subject.task, batch, subject.seed)
        is_usable = {len(tensor) for tensor in changed.values()} == {_count(batch)}
    except Exception:  # user code may raise anything, and the report must be written
        return {}
    is_same = all(name in batch and torch.equal(t, batch[name]) for name, t in changed.items())
    return changed if is_usable and LABEL in changed and not is_same else {}


def _count(batch: Batch) -> int:
    return len(batch[LABEL])


def _decoded(task: Task, batch: Batch) -> list[dict[str, str]]:
    return [_described(task, batch, index) for index in range(_count(batch))]


def _rows(examples: Sequence[dict[str, str]], header: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(example.get(key, "")[:60] for key in header) for example in examples)


def _described(task: Task, batch: Batch, index: int) -> dict[str, str]:
    try:
        return task.describe(batch, index)
    except Exception as error:  # user code may raise anything, and the report must be written
        return {"describe failed": f"{type(error).__name__}: {error}"}


def _tensor_table(batch: Batch) -> tuple[tuple[str, ...], ...]:
    table = []
    for name, tensor in batch.items():
        form = (name, str(tensor.dtype).removeprefix("torch."), str(list(tensor.shape)))
        values = tensor.double()
        numbers = (values.min(), values.mean(), values.max()) if values.numel() else ()
        table.append(form + (tuple(f"{float(n):.4g}" for n in numbers) or ("", "", "")))
    return tuple(table)


def _pixels(task: Task, batch: Batch) -> list[NDArray[np.uint8] | None]:
    """Return the task's own pictures of the examples, or any input that looks like pictures."""
    try:
        own = [task.picture(batch, index) for index in range(_count(batch))]
    except Exception:  # user code may raise anything, and the report must be written
        own = []
    if any(picture is not None for picture in own):
        return own
    images = next((t for t in inputs_of(batch).values() if _looks_like_images(t)), None)
    if images is None:
        return []
    pixels = images.float()
    pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels
    low, high = float(pixels.min()), float(pixels.max())
    shown = ((pixels - low) / max(high - low, 1e-12) * 255).byte().permute(0, 2, 3, 1)
    return list(shown.numpy())


def _pictures(task: Task, batch: Batch, title: str) -> str:
    """Return the examples' pictures with labels as SVG; missing pictures leave a gap."""
    shown = _pixels(task, batch) if batch else []
    if not shown:
        return ""
    labels = batch[LABEL]
    parts = [
        _picture(image, f"{labels[column].item():.6g}" if labels.ndim == 1 else "", column)
        for column, image in enumerate(shown)
        if image is not None
    ]
    width, height = len(shown) * (PICTURE_PIXELS + 8), PICTURE_PIXELS + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{title}</title>{''.join(parts)}</svg>"
    )


def _looks_like_images(tensor: Tensor) -> bool:
    channels_first = tensor.ndim == 4 and tensor.shape[1] in (1, 3)
    grey = tensor.ndim == 3
    return tensor.is_floating_point() and (channels_first or grey) and min(tensor.shape[-2:]) >= 4


def _picture(image: NDArray[np.uint8], caption: str, column: int) -> str:
    left = column * (PICTURE_PIXELS + 8)
    # Repeated pixels stay sharp; a browser would blur an image of 8 by 8. Large ones are thinned.
    image = image if image.ndim == 3 else image[:, :, None]
    step = -(-max(image.shape[:2]) // (2 * PICTURE_PIXELS))
    image = image[::step, ::step]
    factor = max(PICTURE_PIXELS // max(image.shape[:2]), 1)
    content = base64.b64encode(png(image.repeat(factor, axis=0).repeat(factor, axis=1))).decode()
    return (
        f'<image x="{left}" y="0" width="{PICTURE_PIXELS}" height="{PICTURE_PIXELS}" '
        f'href="data:image/png;base64,{content}"/>'
        f'<text x="{left + PICTURE_PIXELS / 2}" y="{PICTURE_PIXELS + 16}" font-size="13" '
        f'text-anchor="middle" fill="currentColor">{escape(caption)}</text>'
    )


def png(image: NDArray[np.uint8]) -> bytes:
    """Encode an image [H, W, 1] or [H, W, 3] as PNG, without an imaging library."""
    height, width, channels = image.shape
    lines = b"".join(b"\0" + line.tobytes() for line in image)
    colour = 0 if channels == 1 else 2
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0),
        b"IDAT": zlib.compress(lines),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
