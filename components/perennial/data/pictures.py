"""Pictures: encoded bytes → pixels, in the same way for measuring, training and serving."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from perennial.contracts.errors import BadDataError

# Modes of eight bits per channel, and what they become. Deeper ones (`I;16`, `F`) are refused:
# Pillow would cut their values off at 255 silently.
_DECODED_AS = {
    **dict.fromkeys(("1", "L", "LA"), "L"),
    **dict.fromkeys(("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"), "RGB"),
}

# Damage surfaces in the format's own parser, as whatever that raises.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError)

Pixels = NDArray[np.uint8]


def decode_picture(content: bytes) -> Pixels:
    """PNG, JPEG or another format that Pillow reads → pixels [H, W], or [H, W, 3] in colour.

    A camera's note on orientation is followed; transparency is dropped.

    Raises:
        BadDataError: the bytes are not a complete picture of eight bits per channel.
    """
    try:
        with Image.open(BytesIO(content)) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.mode not in _DECODED_AS:
                raise ValueError(f"mode {picture.mode} has more than eight bits per channel")
            return np.asarray(picture.convert(_DECODED_AS[picture.mode]))
    except _DAMAGE as error:
        raise BadDataError(
            "a picture cannot be decoded",
            evidence=f"{len(content)} bytes beginning {content[:8]!r}: {error}",
            action="write it again as a complete PNG or JPEG of eight bits per channel",
        ) from error


def is_coloured(content: bytes) -> bool:
    """Whether a picture is decoded in colour, by its header; False where that cannot be read."""
    try:
        with Image.open(BytesIO(content)) as opened:
            return _DECODED_AS.get(opened.mode) == "RGB"
    except _DAMAGE:
        return False


def encode_png(pixels: Pixels) -> bytes:
    """Pixels [H, W] or [H, W, 3] → a PNG file."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
