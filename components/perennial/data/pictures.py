"""Pictures: encoded bytes → pixels, in the same way for measuring, training and serving."""

import re
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image

from perennial.contracts.errors import BadDataError

# Modes of eight bits per channel, and what they become. Deeper ones (`I;16`, `F`) are refused:
# Pillow would cut their values off at 255 silently.
_DECODED_AS = {
    **dict.fromkeys(("1", "L", "LA"), "L"),
    **dict.fromkeys(("P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB"), "RGB"),
}

# What turns a picture upright by the camera's note. `ImageOps.exif_transpose` also writes all other
# notes again, and fails where one of them has a value of another type, as those of phones do.
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

_STREAM = re.compile(r" ?<_io\.BytesIO object at \w+>")  # in Pillow's messages
Pixels = NDArray[np.uint8]


def decode_picture(content: bytes, place: str = "") -> Pixels:
    """PNG, JPEG or another format that Pillow reads → pixels [H, W], or [H, W, 3] in colour.

    A camera's note on orientation is followed if it can be read; transparency is dropped. Errors
    name the `place` that the picture comes from.

    Raises:
        BadDataError: the bytes are not a complete picture of eight bits per channel.
    """
    try:
        with Image.open(BytesIO(content)) as opened:
            if opened.mode not in _DECODED_AS:
                raise ValueError(f"mode {opened.mode} has more than eight bits per channel")
            picture = opened.convert(_DECODED_AS[opened.mode])
            turn = _TURNS.get(_orientation(opened))
            return np.asarray(picture if turn is None else picture.transpose(turn))
    except MemoryError:
        raise
    # Damage surfaces in the format's own parser, as whatever that raises.
    except Exception as error:
        reason = _STREAM.sub("", str(error))
        raise BadDataError(
            f"{place or 'a picture'} cannot be decoded",
            evidence=f"{len(content)} bytes beginning {content[:8]!r}: {reason}",
            action="write it again as a complete PNG or JPEG of eight bits per channel",
        ) from error


def _orientation(picture: Image.Image) -> int:
    """Return a camera's note on orientation; upright where the notes cannot be read."""
    try:
        return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
    except MemoryError:
        raise
    except Exception:  # of Pillow's parser: notes of another form damage no pixels
        return 1


def is_coloured(content: bytes) -> bool:
    """Whether a picture is decoded in colour, by its header; False where that cannot be read."""
    try:
        with Image.open(BytesIO(content)) as opened:
            return _DECODED_AS.get(opened.mode) == "RGB"
    except MemoryError:
        raise
    except Exception:
        return False


def encode_png(pixels: Pixels) -> bytes:
    """Pixels [H, W] or [H, W, 3] → a PNG file."""
    file = BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()
