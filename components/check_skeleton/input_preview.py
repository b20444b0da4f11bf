"""Input preview: a few examples as they enter the model, decoded for people to look at."""

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from components.check_skeleton.subject import Subject
from components.engine.task import LABEL, Batch, Task, inputs_of

EXAMPLES = 8
PICTURE_PIXELS = 96


@dataclass(frozen=True)
class Preview:
    """What the report shows first.

    Attributes:
        header: `describe`'s keys.
        rows: One example each.
        tensors: Name, type, shape, smallest, mean and largest value of each tensor.
        pictures: An inline SVG of the task's pictures, or of an input that looks like them; else
            empty.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    tensors: tuple[tuple[str, ...], ...]
    pictures: str = ""


def preview(subject: Subject) -> Preview:
    """Decode the examples that the overfitting check learns: different inputs, labels in turn."""
    batch = subject.balanced(EXAMPLES)
    count = min(EXAMPLES, len(batch[LABEL]))
    examples = [_described(subject.task, batch, index) for index in range(count)]
    # The label first: wide tables hide their last columns.
    keys = dict.fromkeys(key for example in examples for key in example)
    header = tuple(sorted(keys, key=lambda key: key not in (LABEL, subject.task.columns.label)))
    rows = tuple(tuple(example.get(key, "")[:60] for key in header) for example in examples)
    labels = batch[LABEL]
    captions = [str(labels[index].item()) if labels.ndim == 1 else "" for index in range(count)]
    pictures = _pictures(_pixels(subject.task, batch, count), captions)
    return Preview(header, rows, _tensor_table(subject.train), pictures)


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


def _pixels(task: Task, batch: Batch, count: int) -> list[NDArray[np.uint8]]:
    """The examples as the task shows them, or any input that looks like pictures."""
    try:
        own = [task.picture(batch, index) for index in range(count)]
    except Exception:  # user code may raise anything, and the report must be written
        own = []
    known = [picture for picture in own if picture is not None]
    if known:
        return known
    images = next((t for t in inputs_of(batch).values() if _looks_like_images(t)), None)
    if images is None:
        return []
    pixels = images[:count].float()
    pixels = pixels.unsqueeze(1) if pixels.ndim == 3 else pixels
    low, high = float(pixels.min()), float(pixels.max())
    shown = ((pixels - low) / max(high - low, 1e-12) * 255).byte().permute(0, 2, 3, 1)
    return list(shown.numpy())


def _pictures(shown: Sequence[NDArray[np.uint8]], captions: Sequence[str]) -> str:
    if not shown:
        return ""
    parts = [
        _picture(image, caption, column)
        for column, (image, caption) in enumerate(zip(shown, captions, strict=True))
    ]
    width, height = len(parts) * (PICTURE_PIXELS + 8), PICTURE_PIXELS + 24
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">'
        f"<title>Images as the model receives them, with labels</title>{''.join(parts)}</svg>"
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
    """A PNG file of shape [H, W, 1] or [H, W, 3], without an imaging library in the image."""
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
