"""Randomness off: keep random draws out of trials that must not depend on processes."""

import random

import numpy as np
import torch
from torch import nn

from perennial.check_skeleton.short_training import DROPOUTS, simplified
from perennial.check_skeleton.subject import Subject, rows_of
from perennial.check_skeleton.trials.plan import RandomnessOff
from perennial.engine.task import inputs_of

PROBED_ROWS = 8


def without_dropout(model: nn.Module) -> nn.Module:
    """Switch the dropout layers of a model off; all else stays as in training."""
    for module in model.modules():
        if isinstance(module, DROPOUTS):
            module.p = 0.0
    return model


def find_randomness_switch(subject: Subject) -> RandomnessOff:
    """Find the smallest change that keeps a pass from drawing random numbers."""
    model = subject.build_model()
    model.train()
    without_dropout(model)
    if not _draws(subject, model):
        return "dropout"
    return "noise" if _draws(subject, simplified(model)) else "evaluation"


def _draws(subject: Subject, model: nn.Module) -> bool:
    """Whether a pass draws from the global generators."""
    batch = rows_of(subject.train, slice(PROBED_ROWS))
    before = generator_states()
    with torch.no_grad():
        subject.task.training_losses(model(**inputs_of(batch)), batch)
    return generator_states() != before


def generator_states() -> tuple[object, ...]:
    """Return the generator states of PyTorch, Python and NumPy."""
    kind, keys, *rest = np.random.get_state(legacy=True)
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, random.getstate(), kind, np.asarray(keys).tobytes(), *rest
