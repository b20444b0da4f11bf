"""Picture preprocessor: `preprocessor_config.json`, the form that a pretrained model reads."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perennial.contracts.errors import BadTaskError

# What the pixels of encoded pictures are counted in, 0 to 255, times this is the models' 0 to 1.
RESCALE = 1 / 255
# Steps that are followed, or that do not change the numbers; a crop is followed by its size.
_FOLLOWED = {"do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_convert_rgb"}
# They change the numbers without `do_` in their names.
_OTHER_STEPS = {"rescale_offset", "include_top"}


@dataclass(frozen=True)
class PicturePreprocessor:
    """Size and normalisation of a pretrained model's pictures.

    Attributes:
        size: Height and width; None leaves pictures as they are.
        means: Of each channel, in pixels of 0 to 255.
        deviations: Of each channel, in the same unit.
    """

    size: tuple[int, int] | None
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    @property
    def channels(self) -> int:
        """Return the number of channels."""
        return len(self.means)


def load_preprocessor(content: str) -> PicturePreprocessor:
    """Return what a file says of size and normalisation.

    Raises:
        BadTaskError: it is not such a file, or names steps that are not followed here.
    """
    try:
        settings = json.loads(content)
    except json.JSONDecodeError as error:
        raise _unreadable(f"it is not valid JSON: {error}") from error
    if not isinstance(settings, Mapping):
        raise _unreadable(f"it is not an object, but {str(settings)[:40]}")
    is_step = {name for name in settings if name.startswith("do_")} | _OTHER_STEPS
    unfollowed = [name for name in sorted(is_step - _FOLLOWED) if settings.get(name)]
    if unfollowed:
        raise BadTaskError(
            f"model.options.preprocessor asks for {', '.join(unfollowed)}",
            evidence="pictures are scaled and normalised channel by channel, and nothing else",
            action="choose another family, or derive a task whose encode takes these steps",
        )
    # Files of older versions leave out what was always done.
    factor = settings.get("rescale_factor", RESCALE) if settings.get("do_rescale", True) else 1.0
    means, deviations = [0.0] * 3, [1.0] * 3
    if settings.get("do_normalize", True):
        means, deviations = (_read_channels(settings, name) for name in ("image_mean", "image_std"))
    if not _is_positive(factor) or len(means) != len(deviations) or min(deviations) <= 0:
        raise _unreadable(f"rescale_factor = {factor}, mean {means}, deviation {deviations}")
    return PicturePreprocessor(
        _read_size(settings),
        tuple(mean / factor for mean in means),
        tuple(deviation / factor for deviation in deviations),
    )


def _read_channels(settings: Mapping[str, Any], name: str) -> list[float]:
    found = settings.get(name)
    values = found if isinstance(found, list) else []
    is_numbers = all(isinstance(each, int | float) and math.isfinite(each) for each in values)
    if not is_numbers or len(values) not in (1, 3):
        raise _unreadable(f"{name} is {found!r}, not a number for each of 1 or 3 channels")
    return values


def _read_size(settings: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width of what the model reads: the crop's, or else the whole picture's."""
    name = "crop_size" if settings.get("do_center_crop") else "size"
    if name == "size" and not settings.get("do_resize", True):
        return None
    value = settings.get(name)
    sides = value if isinstance(value, Mapping) else {"shortest_edge": value}
    edge = sides.get("shortest_edge")
    height, width = (sides.get(side, edge) for side in ("height", "width"))
    if not (isinstance(height, int) and isinstance(width, int) and min(height, width) > 0):
        raise _unreadable(f"{name} is {value!r}, not a height and a width")
    return height, width


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value < math.inf


def _unreadable(why: str) -> BadTaskError:
    return BadTaskError(
        "model.options.preprocessor does not name a pretrained model's preprocessor",
        evidence=why,
        action="name the `preprocessor_config.json` of the pretrained model's snapshot",
    )
