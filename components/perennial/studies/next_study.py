"""Next study: what the findings ask for, as a study file that can be run."""

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from perennial.contracts.study import StudyJudgement
from perennial.contracts.toml import toml_line
from perennial.studies.analysis.search import shown_value
from perennial.studies.config import Dimension, StudySection
from perennial.studies.findings import InfeasibleRegion, StudyFindings
from perennial.studies.pruning import evaluation_interval, rungs
from perennial.studies.records import StudyPlan, Trial
from perennial.studies.sampling import shrink, space_of
from perennial.studies.space import Axis, is_among, is_met

FILE_NAME = "next.study.toml"
NEGLIGIBLE = 0.1
"""A hyperparameter that certainly explains less of the differences is not searched again."""
MOST_SEEDS, MOST_CONFIRMATIONS = 5, 20


def propose_next(
    plan: StudyPlan,
    trials: Sequence[Trial],
    findings: StudyFindings,
    judgement: StudyJudgement,
) -> tuple[StudySection, tuple[str, ...]] | None:
    """Return the next study with a reason for each change; None if nothing is left to ask.

    The best trial's values hold where a dimension is not searched again.
    """
    study, reasons = plan.study, list[str]()
    best = next((trial for trial in trials if trial.number == findings.best), None)
    spaces = dict(study.dimensions)
    if not findings.boundaries and not findings.good_points.more_trials:
        spaces = shrink(plan, trials)
        if spaces != study.dimensions:
            reasons.append("ranges are shrunk to where the best trials lie")
    for rule in findings.infeasible:
        feasible = _feasible(spaces[rule.option], rule)
        if feasible is not None:
            spaces[rule.option] = feasible
            reasons.append(f"{rule.text}: they are left out")
    for boundary in findings.boundaries:
        if boundary.proposed is not None:
            spaces[boundary.option] = spaces[boundary.option].with_bounds(*boundary.proposed)
        reasons.append(boundary.text)
    alone = {n: left[0] for n, one in spaces.items() if len(left := one.choices or ()) == 1}
    settled = {**alone, **_negligible(plan, findings, best), **_answered(plan, judgement, best)}
    # An option is fixed only if its conditions certainly hold; leaving one open can open others.
    while vague := [n for n in settled if not is_met(spaces[n].when, settled)]:
        settled = {name: value for name, value in settled.items() if name not in vague}
    spaces |= {name: study.dimensions[name] for name in alone if name not in settled}
    for option, value in settled.items():
        if spaces.pop(option, None) is not None:
            reasons.append(f"{option} is fixed at {value}: there is nothing more to learn from it")
    spaces = _open_conditions(spaces, settled)
    if all(each.same_as is not None for each in spaces.values()):
        return None
    changes: dict[str, object] = {
        "scientific": {name: spaces[name] for name in study.scientific if name in spaces},
        "nuisance": {name: spaces[name] for name in study.nuisance if name in spaces},
        "fixed": {**study.fixed, **settled},
        # With the same seed, the samplers would give the same points of the unit cube again.
        "seed": study.seed + 1,
    }
    changes |= _budget(plan, findings, judgement, reasons)
    proposed = study.model_copy(update=changes)
    points = space_of(plan, spaces).grid_size if study.sampler == "grid" else 0
    if points > proposed.trials:
        proposed = proposed.model_copy(update={"trials": points})
        reasons.append(f"trials = {points}, as many as the grid has points")
    return proposed, tuple(reasons)


def _budget(
    plan: StudyPlan,
    findings: StudyFindings,
    judgement: StudyJudgement,
    reasons: list[str],
) -> dict[str, object]:
    """Return the budget's changes: trials, seeds, steps and confirmations."""
    study, changes = plan.study, dict[str, object]()
    if (more := findings.good_points.more_trials) and not findings.boundaries:
        changes["trials"] = min(study.trials + more, 2 * study.trials)
        reasons.append(findings.good_points.text)
    noise = findings.noise
    if len(noise.tied) > 1 and noise.seeds_needed and noise.seeds_needed > study.seeds_per_trial:
        changes["seeds_per_trial"] = min(noise.seeds_needed, MOST_SEEDS)
        reasons.append(noise.text)
    is_free = "training.steps" not in {*study.dimensions, *study.fixed}
    if is_free and findings.length.advice in {"longer", "shorter"} and findings.length.next_steps:
        changes["steps"] = steps = findings.length.next_steps
        reasons.append(findings.length.text)
        if study.pruning != "off" and not rungs(steps, evaluation_interval(plan), study.reduction):
            default = StudySection.model_fields["reduction"].default
            changes |= {"pruning": "off", "reduction": default}
            reasons.append(f"trials of {steps:,} steps have no rung to be stopped at")
    needed = [each.confirmations_needed for each in judgement.comparisons]
    asked = [count for count in needed if count is not None]
    if judgement.decision == "inconclusive" and asked:
        changes["confirmations"] = min(max(min(asked), study.confirmations), MOST_CONFIRMATIONS)
        reasons.append(judgement.summary)
    return changes


def _feasible(dimension: Dimension, rule: InfeasibleRegion) -> Dimension | None:
    """Return a dimension without an infeasible region; None if all would be left out."""
    if rule.proposed is not None:
        return dimension.with_bounds(*rule.proposed)
    left = [each for each in dimension.choices or () if f"= {shown_value(each)}" != rule.where]
    return dimension.model_copy(update={"choices": tuple(left)}) if left else None


def _open_conditions(
    spaces: Mapping[str, Dimension], settled: Mapping[str, JsonValue]
) -> dict[str, Dimension]:
    """Return dimensions with the conditions that are still open, without those never met now."""
    left, count = dict(spaces), -1
    while len(left) != count:  # one that is left out takes those along that depend on it
        count = len(left)
        left = {
            name: each.model_copy(update={"when": when})
            for name, each in left.items()
            if (when := _open_condition(each, left, settled)) is not None
        }
    return left


def _open_condition(
    dimension: Dimension, spaces: Mapping[str, Dimension], settled: Mapping[str, JsonValue]
) -> dict[str, tuple[JsonValue, ...]] | None:
    when: dict[str, tuple[JsonValue, ...]] = {}
    for parent, held in dimension.when.items():
        if parent in settled:
            known = [settled[parent]]
        else:
            known = Axis(parent, spaces[parent]).values() if parent in spaces else []
        possible = tuple(each for each in held if is_among(each, known))
        if not possible:
            return None
        if parent not in settled:
            when[parent] = possible
    return when


def _negligible(
    plan: StudyPlan, findings: StudyFindings, best: Trial | None
) -> dict[str, JsonValue]:
    """Return nuisance values that certainly matter little, as the best trial has them."""
    if best is None:
        return {}
    return {
        effect.options[0]: best.values[effect.options[0]]
        for effect in findings.effects.main
        if effect.high < NEGLIGIBLE
        and effect.options[0] in best.values
        and not any(
            effect.options[0] in pair.options and pair.is_clear for pair in findings.effects.pairs
        )
    }


def _answered(
    plan: StudyPlan, judgement: StudyJudgement, best: Trial | None
) -> dict[str, JsonValue]:
    """Return scientific choices whose question is answered, as the winner has them."""
    decided = {
        answer.option
        for answer in judgement.answers
        if answer.comparisons
        and plan.study.scientific[answer.option].choices is not None
        and all(each.is_clear for each in answer.comparisons)
    }
    values = judgement.changes or (best.values if best is not None else {})
    return {
        option: values[option]
        for option in plan.study.scientific
        if option in decided and option in values
    }


def write_study(section: StudySection, reasons: tuple[str, ...]) -> str:
    """Return a study as the text of a study file; a comment gives the reason of each change."""
    lines = [f"# {reason}" for reason in reasons]
    lines += ["", "[study]"] if lines else ["[study]"]
    fields = section.model_dump(mode="json", exclude_defaults=True)
    roles = {role: fields.pop(role, {}) for role in ("scientific", "nuisance")}
    lines += [toml_line(key, value) for key, value in fields.items()]
    for role, spaces in roles.items():
        for option, space in spaces.items():
            lines += ["", f'[study.{role}."{option}"]']
            lines += [toml_line(key, value) for key, value in space.items()]
    return "\n".join(lines) + "\n"
