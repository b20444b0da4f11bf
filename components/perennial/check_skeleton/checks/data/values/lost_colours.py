"""Find pictures in colour that are read as grey, into channels that are all the same."""

import numpy as np
import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.signals import find_tensors_of
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject
from perennial.contracts.errors import BadDataError
from perennial.contracts.skeleton import CheckResult
from perennial.data.pictures import decode_picture
from perennial.engine.task import inputs_of

PICTURES = 64
CHANNELS = 3
# Of grey levels, on average: what JPEG makes of grey.
GREY = 2.0
# Channels of equal numbers stay in line whatever each is scaled by.
SAME = 1e-4


def judge_lost_colours(judge: Judge, subject: Subject) -> CheckResult | None:
    """Warn of pictures in colour whose channels are the same in the inputs; None if none are."""
    grey = {name for name, each in inputs_of(subject.train).items() if _has_equal_channels(each)}
    for name in subject.task.columns.features if grey else ():
        column = subject.train_rows[name].head(PICTURES)
        if column.dtype != pl.Binary or column.null_count() or not _are_in_colour(column):
            continue
        if found := grey.intersection(find_tensors_of(subject, name)):
            return judge.warned(
                f"{name} holds pictures in colour, and the {CHANNELS} channels of {min(found)} are "
                "the same",
                hint="the files are opened as grey and repeated: open them in colour. Correct if "
                "colours must not matter",
            )
    return None


def _are_in_colour(files: pl.Series) -> bool:
    """Whether red, green and blue differ."""
    try:
        pictures = [decode_picture(file).astype(np.float64) for file in files]
    except BadDataError:
        return False
    if any(each.ndim != CHANNELS for each in pictures):
        return False
    return bool(np.mean([np.ptp(each, axis=2).mean() for each in pictures]) > GREY)


def _has_equal_channels(tensor: Tensor) -> bool:
    """Whether all channels of an input hold the same numbers, but for scale and offset."""
    for pictures in (tensor, tensor.movedim(-1, 1)) if tensor.ndim == 4 else ():
        if pictures.shape[1] == CHANNELS:
            flat = pictures[:PICTURES].double().movedim(1, 0).reshape(CHANNELS, -1)
            return bool((torch.corrcoef(flat) > 1 - SAME).all())
    return False
