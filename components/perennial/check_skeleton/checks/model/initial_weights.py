"""Checks of `[model.initial]`: stored weights are loaded, fit, and have not seen the test rows."""

import numpy as np
import torch
from torch import nn

from perennial.check_skeleton.free_outputs import compute_constant_losses, find_training_constant
from perennial.check_skeleton.models import evaluated
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, select_head
from perennial.contracts.initial_model import InitialModel
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.initial_weights import fresh_names, load_initial_weights
from perennial.engine.objective import weighted_losses
from perennial.engine.task import inputs_of

FITTED_ROWS = 256
FITTED_STEPS = 100
FITTED_RATE = 1e-2
NOISE_ERRORS = 3.0
"""A loss differs from another if the mean difference exceeds so many standard errors."""


@check(
    "initial_weights",
    expects="a lower loss than random weights and than the best constant; no test row seen",
    tolerance=f"{NOISE_ERRORS:g} standard errors",
    source="guides: verify that pretrained weights are loaded before fine-tuning",
)
def check_initial_weights(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the initial weights know something, and nothing of the test rows."""
    initial = subject.initial
    if initial is None:
        return judge.skipped("training starts from random weights")
    if subject.seen.count:
        return judge.failed(
            "; ".join(subject.seen.lines),
            hint='set model.initial.source = "scratch" for the first training under a new split '
            "rule: the gate would judge the new model on rows that it was trained on",
        )
    losses, notes = _measure_losses(subject, initial)
    means = {name: float(each.mean()) for name, each in losses.items()}
    rival = min(losses.keys() - {"initial weights"}, key=means.__getitem__)
    gain = losses[rival] - losses["initial weights"]
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    shown = f"validation loss {means['initial weights']:.4g}, of {rival} {means[rival]:.4g}"
    shown += "".join(f"; {note}" for note in notes)
    if gain.mean() > NOISE_ERRORS * error:
        return judge.passed(shown, **means)
    hint = (
        "the stored weights do not help: are they loaded into the layers that they were trained in "
        "(model.initial.rename), and do inputs have the normalisation, tokenization and order of "
        "columns that they were trained with?"
    )
    # A new head, fitted briefly, may not show all that the weights know.
    return judge.warned(shown, hint, **means) if initial.new else judge.failed(shown, hint, **means)


def _measure_losses(
    subject: Subject, initial: InitialModel
) -> tuple[dict[str, Floats], tuple[str, ...]]:
    """Return the validation losses of each example, and what the weights did not fit.

    Parameters that start at random are fitted first, on the same rows and alone.
    """
    task, rows = subject.task, subject.validation
    models = {
        name: evaluated(subject.build_model()) for name in ("random weights", "initial weights")
    }
    notes = load_initial_weights(models["initial weights"], task, initial)
    if initial.new:
        for model in models.values():
            _fit(subject, model, fresh_names(model, initial))
    losses = {name: score_in_parts(task, model, rows).losses for name, model in models.items()}
    if not initial.new and task.scored_together == 1:
        constant = compute_constant_losses(task, find_training_constant(subject)[0], rows)
        losses["the best constant"] = constant.double().numpy()
    return losses, notes


def _fit(subject: Subject, model: nn.Module, names: set[str]) -> None:
    """Train some parameters in evaluation mode, in place."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in names)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=FITTED_RATE)
    batch = select_head(subject.train, min(FITTED_ROWS, subject.task.scoring_rows))
    for _ in range(FITTED_STEPS):
        optimizer.zero_grad()
        losses = weighted_losses(subject.task, model(**inputs_of(batch)), batch)
        torch.autograd.backward(losses.mean())
        optimizer.step()
