"""Judge losses below zero: some fall without end as outputs grow, whatever the labels are."""

import math
from itertools import pairwise

import torch

from perennial.check_skeleton.checks.loss.densities import DENSITY, is_log_density
from perennial.check_skeleton.free_outputs import compute_output, find_output_domain, probe
from perennial.check_skeleton.models import measure_loss
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult

# Multiples of the model's outputs: a loss in proportion falls ten times as far each time.
SCALES = (1e2, 1e3, 1e4)
IN_PROPORTION = 5.0


def judge_negative(
    judge: Judge, subject: Subject, shown: str, *, is_at_labels: bool
) -> CheckResult:
    """Judge a loss below zero; `is_at_labels` tells whether it is least at the labels."""
    if endless := _describe_endless_fall(subject):
        return judge.failed(
            f"{shown}; {endless}",
            hint="no output is best, so that the training makes outputs ever larger: has a term "
            "the wrong sign or weight, as that of an energy score's pairs?",
        )
    if is_at_labels:
        return judge.passed(f"{shown}: below zero, and minimal where the labels are predicted")
    if is_log_density(subject):
        return judge.passed(f"{shown}: {DENSITY}")
    return judge.warned(
        shown,
        hint="is a sign wrong? Correct for log-densities and for Poisson losses without their "
        "constant term; add it, so that the minimum is zero",
    )


def _describe_endless_fall(subject: Subject) -> str:
    """Describe how the loss of random outputs falls with their size; empty if it does not.

    Both signs are tried: what rises for one, as the score of a critic, rewards a direction and not
    the size. Densities reward size nowhere: outputs far from every label are unlikely.
    Only outputs that the model can have are tried.
    """
    task, batch, domain = subject.task, probe(subject), find_output_domain(subject)
    output = compute_output(subject, batch)
    if not output.is_floating_point() or not bool(output.isfinite().all()):
        return ""
    noise = torch.randn(output.shape, generator=torch.Generator().manual_seed(subject.seed))
    spread = max(float(output.std()), 1.0)
    for sign in (1, -1):
        try:
            found = [
                measure_loss(task.losses, domain.outputs(sign * scale * spread * noise), batch)
                for scale in SCALES
            ]
        except Exception:  # a loss may reject outputs that the model cannot make
            return ""
        falls = all(far < IN_PROPORTION * near < 0 for near, far in pairwise(found))
        if not falls or not all(map(math.isfinite, found)):
            return ""
    return (
        "the loss falls without end as outputs grow at random: "
        f"{', '.join(f'{each:.3g}' for each in found)} at "
        f"{', '.join(f'{scale:g}' for scale in SCALES)} times their size"
    )
