"""Definition of a study: from the contract or a file beside it, checked before any trial."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue, ValidationError

from perennial.contract import Contract, check_suite, check_task, load_beside_its_task
from perennial.contract_file.sections import ContractError, Problem, read_document
from perennial.contract_file.toml_text import where_in
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.studies.config import StudySection
from perennial.studies.records import ADAPTIVE


class StudyFile(Section):
    """A study in a file of its own."""

    study: StudySection
    """The same tables as in a contract."""


def load_study(contract: Path, study: Path | None = None) -> Contract:
    """Return the contract with its study, or with the one of another file; check both.

    Raises:
        ContractError: every mistake found, with file, line and remedy.
        PerennialError: there is no study, or the task lacks what it names.
    """
    found = load_beside_its_task(contract, with_study=True)
    place = study or contract
    if study is not None:
        document, text = read_document(study, StudyFile, "study")
        found = found.model_copy(update={"study": document.study})
    else:
        text = contract.read_text(encoding="utf-8-sig")
    if found.study is None:
        raise PerennialError(
            f"{contract} has no [study]",
            action="write one (`perennial options study`), or name a file: --study FILE",
        )
    check_task(found)
    check_suite(contract, found)
    problems = list(find_problems(found, place, text))
    if problems:
        raise ContractError(place, problems)
    return found


def find_problems(contract: Contract, path: Path, text: str) -> Iterator[Problem]:
    """Yield the mistakes of a study's design, with the place in its file."""
    from perennial.studies.design import find_flaws  # noqa: PLC0415 - imports SciPy
    from perennial.studies.planning import draft_plan  # noqa: PLC0415
    from perennial.training_jobs.config import TrainModelConfig  # noqa: PLC0415

    study = contract.study
    if study is None:
        raise ValueError("the contract has no study")
    settings = TrainModelConfig(
        model=contract.model, training=contract.training, resources=contract.resources
    )
    for flaw in find_flaws(study, lambda: draft_plan(settings, study), _validation(contract)):
        yield Problem(where_in(path, text, ("study", *flaw.place)), "", flaw.problem, flaw.action)


def _validation(contract: Contract) -> Callable[[Mapping[str, JsonValue]], str]:
    """Return what holds values, beside the study's fixed ones, against contract and task."""
    from perennial.engine.task import check_options, load_task_type  # noqa: PLC0415
    from perennial.studies.space import read_with  # noqa: PLC0415

    study, task_type = contract.study, load_task_type(contract.model.task)
    plain = contract.model_copy(update={"study": None}).model_dump(mode="json")
    changed = study.fixed_values if study is not None else {}

    def validate(values: Mapping[str, JsonValue]) -> str:
        try:
            found = read_with(Contract, plain, {**changed, **values})
            check_options(task_type, found.model.options)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            return f"{place}: {first['msg']}"
        except PerennialError as error:
            return f"{error.problem} ({error.evidence})" if error.evidence else error.problem
        return ""

    return validate


def design_warnings(contract: Contract) -> list[str]:
    """Return what a contract's study may do, and what is rarely wanted."""
    study, resources = contract.study, contract.resources
    if study is None:
        return []
    free = [name for name, each in study.dimensions.items() if each.same_as is None]
    warnings = []
    threads = study.parallel * resources.num_processes * resources.threads_per_process
    cores = os.cpu_count() or 1
    if threads > cores:
        warnings.append(
            f"{study.parallel} trials at a time of {resources.num_processes} processes need "
            f"{threads} cores, and this machine has {cores}: lower study.parallel or "
            "resources.num_processes"
        )
    if study.sampler == "grid" and len(free) > 1:
        warnings.append(
            "a grid tries each value of a hyperparameter again and again beside values of others "
            "that may have no effect: quasi_random tries as many values as trials"
        )
    if study.sampler == "quasi_random" and study.trials & (study.trials - 1):
        power = 1 << (study.trials.bit_length() - 1)
        warnings.append(
            f"quasi-random points are most even for a power of two: trials = {power} or "
            f"{2 * power} (got {study.trials})"
        )
    if study.sampler in ADAPTIVE and study.scientific:
        warnings.append(
            f"{study.sampler} tries what did well before: what the trials show about the "
            "hyperparameters is biased; use it for a second stage (study.exploit)"
        )
    return warnings
