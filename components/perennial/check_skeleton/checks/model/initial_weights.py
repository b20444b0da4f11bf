"""Checks of `[model.initial]`: stored weights are loaded, fit, and have not seen the test rows."""

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from perennial.check_skeleton.checks.model.initial_readings import (
    Reading,
    exchange_blocks,
    list_readings,
)
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
KNOWN_TIMES = 2.0
"""Another reading is the right one if the weights then know so many times as much: their lead over
the best rival. On their own data, weights lead by the same under no reading but their own."""
KNOWN_SHARE = 0.01
"""And at least such a share of the rival's loss: weights that know nothing lead by 0.1% under one
of many readings, by luck."""


@check(
    "initial_weights",
    expects="a lower loss than random weights and than the best constant, and not a far lower one "
    "with inputs normalised otherwise or with blocks exchanged; no test row seen",
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
    shown = f"validation loss {means['initial weights']:.4g}, of {rival} {means[rival]:.4g}"
    shown += "".join(f"; {note}" for note in notes)
    if better := _describe_better_reading(subject, initial, losses, rival):
        return judge.failed(
            f"{shown}; {better}",
            hint="the weights were trained on other inputs, or in another order of layers: give "
            "encode the normalisation and the order of channels of the base, or correct "
            "model.initial.rename",
            **means,
        )
    if _is_clear(gain):
        return judge.passed(shown, **means)
    hint = (
        "the stored weights do not help: are they loaded into the layers that they were trained in "
        "(model.initial.rename), and do inputs have the normalisation, tokenization and order of "
        "columns that they were trained with?"
    )
    is_champion = initial.origin.source == "champion"
    if is_champion:
        hint = (
            "the champion does not know these rows: expected after strong drift, and training "
            'from random weights may then learn more (model.initial.source = "scratch"); if '
            "nothing drifted, compare encode with the champion's"
        )
    # A new head, fitted briefly, may not show all that the weights know.
    return (judge.warned if initial.new or is_champion else judge.failed)(shown, hint, **means)


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
        constant = compute_constant_losses(subject, find_training_constant(subject)[0], rows)
        losses["the best constant"] = constant.double().numpy()
    return losses, notes


def _describe_better_reading(
    subject: Subject, initial: InitialModel, losses: dict[str, Floats], rival: str
) -> str:
    """Describe inputs or blocks with which the weights know far more; empty if there are none."""
    given, given_lead = losses["initial weights"], losses[rival] - losses["initial weights"]
    model = evaluated(subject.build_model())
    load_initial_weights(model, subject.task, initial)
    name, readings = list_readings(subject)
    known = max(
        KNOWN_TIMES * float(given_lead.mean()), KNOWN_SHARE * abs(float(losses[rival].mean()))
    )
    better = dict[str, float]()
    for described, read in readings.items():
        other = _read_otherwise(subject, name, read)
        found = _measure_fitted(other, model, initial)
        if not _is_clear(given - found):
            continue
        # Another scale may suit any weights: random ones get it as well.
        random = _measure_fitted(other, evaluated(subject.build_model()), initial)
        rivals = [random, *([losses[rival]] if not initial.new else [])]
        lead = min(rivals, key=np.mean) - found
        if _is_clear(lead) and lead.mean() > known:
            better[f"{name} {described}"] = float(found.mean())
    for described in exchange_blocks(subject, model) if not initial.new else ():
        found = score_in_parts(subject.task, model, subject.validation).losses
        lead = losses[rival] - found
        if _is_clear(given - found) and lead.mean() > known:
            better[described] = float(found.mean())
    best = min(better, key=better.__getitem__, default="")
    return f"with {best} it would be {better[best]:.4g}" if best else ""


def _is_clear(gain: Floats) -> bool:
    return float(gain.mean()) > NOISE_ERRORS * float(gain.std(ddof=1) / np.sqrt(len(gain)))


def _read_otherwise(subject: Subject, name: str, read: Reading) -> Subject:
    """Return the subject with one input read in another way."""
    other = replace(subject)
    for each in ("train", "validation"):
        batch = getattr(subject, each)
        vars(other)[each] = {**batch, name: read(batch[name])}
    return other


def _measure_fitted(subject: Subject, model: nn.Module, initial: InitialModel) -> Floats:
    """Return the validation losses of a model whose new parameters are fitted; it is put back."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    if initial.new:
        _fit(subject, model, fresh_names(model, initial))
    losses = score_in_parts(subject.task, model, subject.validation).losses
    model.load_state_dict(before)
    return losses


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
