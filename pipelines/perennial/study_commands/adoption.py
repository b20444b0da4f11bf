"""Adoption: write a study's winning values into its contract, as a patch that people review."""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from perennial.contract import Contract, load_beside_its_task
from perennial.contract_file.edits import change_options
from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import flattened
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.study import StudyJudgement
from perennial.engine.task import check_options, load_task_type
from perennial.register_model.config import AdoptedStudy
from perennial.studies.planning import baseline_of, trial_document
from perennial.studies.records import StudyPlan
from perennial.studies.space import canonical, option_value, read_with
from perennial.training_jobs.config import TrainModelConfig

OPTION = "registry.study"


@dataclass(frozen=True)
class Patch:
    """Changes of a contract.

    Attributes:
        notes: What the reviewer should know besides the changed lines.
    """

    path: Path
    before: str
    after: str
    notes: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Yield the patch as a unified diff, to be applied by `git apply` or `patch`."""
        old, new = self.before.splitlines(), self.after.splitlines()
        names = f"a/{self.path.name}", f"b/{self.path.name}"
        yield from difflib.unified_diff(old, new, names[0], names[1], lineterm="")

    def write(self) -> None:
        """Apply it.

        Raises:
            PerennialError: the contract was changed meanwhile.
        """
        if self.path.read_text(encoding="utf-8") != self.before:
            raise PerennialError(
                f"{self.path} was changed meanwhile", action="run the same command again"
            )
        write_atomically(self.path, self.after.encode())


def adopt_study(
    path: Path, plan: StudyPlan, judgement: StudyJudgement, snapshot: Snapshot, *, anyway: bool
) -> Patch:
    """Return the patch that writes a study's values, and where they come from, into a contract.

    `anyway` adopts the best finalist although the study did not decide `adopt`.

    Raises:
        PerennialError: the study did not decide `adopt`, is of another model or other data, or the
            contract has changed since in the options concerned.
    """
    contract = load_beside_its_task(path)
    _require_same_subject(contract, plan, snapshot)
    values, adopted = _chosen(plan, judgement, anyway=anyway)
    current = _current_values(contract, plan)
    changes = {
        option: value
        for option, value in values.items()
        if canonical(current.get(option)) != canonical(value)
    }
    changed_since = [
        f"{option} was {canonical(plan.baseline.get(option))}, is {canonical(current.get(option))}"
        for option in changes
        if option in plan.baseline
        and canonical(current.get(option)) != canonical(plan.baseline.get(option))
    ]
    if changed_since:
        raise PerennialError(
            f"{path} has changed since the study, in what it compared with",
            evidence="; ".join(changed_since),
            action="run the study again: its baseline is the contract's own values",
        )
    before = path.read_text(encoding="utf-8")
    after = change_options(before, changes) if changes else before
    if changes:
        found = adopted.model_copy(update={"options": tuple(changes)})
        left_over = dict.fromkeys(_left_over(contract, after, changes))
        after = change_options(after, {**left_over, OPTION: found.model_dump(mode="json")})
        _require_readable(path, after)
    return Patch(path, before, after, tuple(_notes(contract, plan, changes)))


def _require_same_subject(contract: Contract, plan: StudyPlan, snapshot: Snapshot) -> None:
    """Refuse a study of another model, another task or other data."""
    studied = TrainModelConfig.model_validate_json(canonical(plan.contract)).model
    pairs = {
        "model.name": (contract.model.name, studied.name),
        "model.task": (contract.model.task, studied.task),
        "[data]": (contract.data.to_json(), snapshot.data.to_json()),
        "[split]": (contract.split.to_json(), snapshot.split.to_json()),
    }
    differing = [name for name, (ours, theirs) in pairs.items() if ours != theirs]
    if differing:
        raise PerennialError(
            f"the study {plan.study_digest[:16]} is of another model or of other data",
            evidence=f"the contract differs in {', '.join(differing)}",
            action="adopt it in the contract that it was run with, or run a study of this one",
        )


def _chosen(
    plan: StudyPlan, judgement: StudyJudgement, *, anyway: bool
) -> tuple[dict[str, JsonValue], AdoptedStudy]:
    """Return the values to write, and their provenance."""
    compared = [each for each in judgement.comparisons if each.improvement is not None]
    if judgement.decision != "adopt" and not anyway:
        raise PerennialError(
            f"the study {plan.study_digest[:16]} did not decide `adopt`, but "
            f"`{judgement.decision}`: {judgement.summary}",
            action="run the next study (next.study.toml), or adopt its best finalist --anyway: the "
            "contract and each model's lineage will say so",
        )
    if not compared:
        raise PerennialError(
            f"the study {plan.study_digest[:16]} has compared no finalist on test rows",
            evidence=judgement.summary,
            action="continue it with `perennial study run`",
        )
    best = max(compared, key=lambda each: each.improvement.estimate if each.improvement else 0.0)
    winner = next((each for each in compared if each.trial == judgement.winner), best)
    adopted = AdoptedStudy(
        study_digest=plan.study_digest,
        trial=winner.trial,
        decision=judgement.decision,
        evidence=f"{judgement.metric}: {winner.text}",
        options=(),
    )
    return {**plan.study.fixed, **winner.values}, adopted


def _current_values(contract: Contract, plan: StudyPlan) -> dict[str, JsonValue]:
    """Return option → value that the contract has now, or the task's default."""
    document = contract.model_dump(mode="json")
    options = check_options(load_task_type(contract.model.task), contract.model.options)
    found = baseline_of(document, plan.study, options.model_dump(mode="json"))
    for option in plan.study.fixed:
        is_known, value = option_value(document, option)
        if is_known:
            found[option] = value
    return found


def _left_over(contract: Contract, text: str, changes: Mapping[str, JsonValue]) -> Iterator[str]:
    """Yield written options that the new values' kind of table lacks, as another optimizer does."""
    meant = read_with(Contract, contract.model_dump(mode="json"), changes).model_dump(mode="json")
    written = tomllib.loads(text)
    for table in dict.fromkeys(option.rpartition(".")[0] for option in changes):
        there, wanted = option_value(written, table)[1], option_value(meant, table)[1]
        if isinstance(there, dict) and isinstance(wanted, dict) and table != "model.options":
            yield from (f"{table}.{name}" for name in there if name not in wanted)


def _require_readable(path: Path, text: str) -> None:
    """Load the changed contract as any verb would, from a file beside it."""
    # Beside it: relative paths and the task's module are looked for in the contract's folder.
    draft = path.with_name(f".{path.stem}.adopting.toml")
    try:
        draft.write_text(text, encoding="utf-8")
        load_beside_its_task(draft)
    finally:
        draft.unlink(missing_ok=True)


def _notes(contract: Contract, plan: StudyPlan, changes: dict[str, JsonValue]) -> Iterator[str]:
    """Yield what the conclusion rests on and the contract does not have."""
    if not changes:
        yield "the contract has these values already: nothing to change"
        return
    settings = TrainModelConfig(
        model=contract.model, training=contract.training, resources=contract.resources
    )
    now, then = flattened(trial_document(settings, plan.study)), flattened(plan.contract)
    differing = [
        name
        for name, found in now.items()
        if name not in plan.baseline
        and not name.startswith("resources.")
        and (name not in then or canonical(found) != canonical(then[name]))
    ]
    if differing:
        yield f"changed since the study, outside of what it varied: {', '.join(sorted(differing))}"
    if plan.study.steps is not None and plan.study.steps != contract.training.steps:
        yield (
            f"trials had {plan.study.steps:,} steps, the contract trains "
            f"{contract.training.steps:,}: the best values may differ"
        )
    if plan.study.fixed:
        yield f"the conclusion holds for the fixed values: {canonical(plan.study.fixed)}"
