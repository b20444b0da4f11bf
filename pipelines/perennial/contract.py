"""Training contract: one TOML file per model, checked whole before anything runs."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

from pydantic import Field, JsonValue

from perennial.check_skeleton.config import SkeletonSection
from perennial.contract_file.sections import ContractError, Problem, read_document
from perennial.contract_file.toml_text import where_in
from perennial.contracts.data import DataSection, ModelSection, SplitSection
from perennial.contracts.errors import BadTaskError
from perennial.contracts.initial import HuggingFaceWeights, SafetensorsWeights, Scratch
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.section import Section
from perennial.contracts.toml import toml_line
from perennial.contracts.triggers import TriggersSection
from perennial.engine.config.training import TrainingSection
from perennial.gate.config import GateSection
from perennial.register_model.config import RegistrySection
from perennial.select_checkpoint.config import SelectionSection
from perennial.studies.config import StudySection
from perennial.training_jobs.config import ResourcesSection
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.suites.document import (
    lines_of_expectations,
    load_suite,
    read_suite_file,
)


class Contract(Section):
    """The training contract of one model."""

    model: ModelSection
    """The model and the task that defines it."""
    data: DataSection
    """The stream of data and what its columns mean."""
    split: SplitSection = Field(default_factory=SplitSection)
    """Rows for training, validation and test."""
    expectations: ExpectationsSection = Field(default_factory=ExpectationsSection)
    """Limits that the data must meet."""
    skeleton: SkeletonSection = Field(default_factory=SkeletonSection)
    """The sanity checks before training."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """Training: steps, batch sizes, optimizer, parallelism."""
    resources: ResourcesSection = Field(default_factory=ResourcesSection)
    """Processes, machines and budgets of the training."""
    selection: SelectionSection = Field(default_factory=SelectionSection)
    """Selection of the checkpoint."""
    scoring: ScoringSection = Field(default_factory=ScoringSection)
    """How a model is divided while it is scored."""
    gate: GateSection = Field(default_factory=GateSection)
    """Conditions for promoting a challenger."""
    registry: RegistrySection = Field(default_factory=RegistrySection)
    """Registration of model versions."""
    triggers: TriggersSection = Field(default_factory=TriggersSection)
    """Triggers of a retraining."""
    study: Annotated[StudySection | None, Field(exclude_if=lambda study: study is None)] = None
    """A question about hyperparameters, for `perennial study`. A training does not read it."""

    def metric_names(self) -> dict[str, str]:
        """Return option → metric that it names; the task must have each of them."""
        # What selection chooses by becomes training's too: the error names where it is written.
        named = {
            "study.metric": self.study.metric if self.study else "",
            "selection.metric": self.selection.metric,
            "training.metric": self.training.metric,
            "gate.metric": self.gate.metric,
        }
        named |= {f"selection.limits.{name}": name for name in self.selection.limits}
        named |= {f"gate.required.{name}": name for name in self.gate.required}
        named |= {f"gate.max_regression.{name}": name for name in self.gate.max_regression}
        named |= {f"skeleton.human.{name}": name for name in self.skeleton.human}
        return {place: name for place, name in named.items() if name}


def load_contract(path: Path, *, with_study: bool = False) -> Contract:
    """Read and check a contract file; relative paths are taken from the file's folder.

    The suite that it names by a path is read into it, so that it travels with the contract.

    Without its study, unless that is asked for: a training does not depend on it.

    Raises:
        ContractError: every mistake found, with file, line, value, expectation and remedy.
        PerennialError: there is no such file, or none at `expectations.suite`.
    """
    contract, text = read_document(path, Contract, "contract")
    uri = _absolute(path, contract.data.uri)
    model = contract.model
    if isinstance(model.initial, SafetensorsWeights | HuggingFaceWeights):
        place = {"uri": _absolute(path, model.initial.uri)}
        model = model.model_copy(update={"initial": model.initial.model_copy(update=place)})
    # The best checkpoints that training keeps are the best by selection's metric.
    metric = contract.training.metric or contract.selection.metric
    changes = {
        "model": model,
        "data": contract.data.model_copy(update={"uri": uri}),
        "training": contract.training.model_copy(update={"metric": metric}),
        "study": contract.study if with_study else None,
        "expectations": _with_suite(path, contract.expectations),
    }
    contract = contract.model_copy(update=changes)
    problems = list(_cross_field_problems(path, text, contract))
    if problems:
        raise ContractError(path, problems)
    return contract


def _absolute(path: Path, uri: str) -> str:
    """Return an address; a relative path is taken from the contract's folder."""
    return uri if "://" in uri else str((path.resolve().parent / uri).resolve())


def _with_suite(path: Path, section: ExpectationsSection) -> ExpectationsSection:
    if not section.suite or "://" in section.suite or section.suite.startswith("{"):
        return section
    text = read_suite_file(path.resolve().parent / section.suite)
    return section.model_copy(update={"suite": text})


def with_suite_path(path: Path, contract: Contract) -> Contract:
    """Return a loaded contract that names its suite as its file does, for people to read."""
    written = read_document(path, Contract, "contract")[0].expectations.suite
    section = contract.expectations.model_copy(update={"suite": written})
    return contract.model_copy(update={"expectations": section})


def load_beside_its_task(path: Path, *, with_study: bool = False) -> Contract:
    """Load a contract with the task's module found beside it, as the steps will find it."""
    folder = str(path.resolve().parent)
    # First, also where another contract was loaded since.
    sys.path[:] = [folder, *(each for each in sys.path if each != folder)]
    return load_contract(path, with_study=with_study)


def load_checked(path: Path) -> Contract:
    """Load a contract beside its task, and check the task and the suite."""
    contract = load_beside_its_task(path)
    check_task(contract)
    check_suite(path, contract)
    return contract


def check_task(contract: Contract) -> None:
    """Load the task and hold it against the contract; imports PyTorch.

    Raises:
        PerennialError: it cannot be loaded, or lacks an option or metric that the contract names.
    """
    from perennial.engine.task import (  # noqa: PLC0415 - reading a contract needs no PyTorch
        check_metrics,
        check_options,
        load_task_type,
    )

    task_type = load_task_type(contract.model.task)
    _require_recordable(task_type.__name__, getattr(task_type, "metrics", {}))
    options = check_options(task_type, contract.model.options)
    check_metrics(task_type, options, contract.metric_names())


def check_suite(path: Path, contract: Contract) -> None:
    """Check that each expectation of the contract's suite can be judged; imports GX if it has one.

    Raises:
        PerennialError: it names each that cannot, with its line in the suite's file.
    """
    if not contract.expectations.suite:
        return
    import polars as pl  # noqa: PLC0415 - as the following

    from perennial.validate_data.suites.judging import (  # noqa: PLC0415 - seconds, and seldom
        plan_suite,
        refuse_unsupported,
    )

    written = read_document(path, Contract, "contract")[0].expectations.suite
    file = path.resolve().parent / written
    is_file = "://" not in written and not written.startswith("{")
    lines = list(lines_of_expectations(file.read_text())) if is_file else []
    suite = load_suite(contract.expectations.suite)
    # Which types there are depends on no column.
    refuse_unsupported(plan_suite(suite, pl.Schema(), is_sampled=False), lines)


def _require_recordable(task: str, metrics: Iterable[str]) -> None:
    """Refuse names of metrics that MLflow would refuse when the training is over."""
    unfit = [name for name in metrics if not re.fullmatch(r"\w[\w. -]*(/\w[\w. -]*)*", name)]
    if unfit:
        raise BadTaskError(
            f"the metrics of {task} cannot be recorded by MLflow",
            evidence=f"invalid names: {', '.join(map(repr, unfit))}",
            action="name them by letters, digits, spaces and any of _ - . / only",
        )


def to_toml(contract: Contract) -> str:
    """Return the resolved contract as TOML, every default written out."""
    sections = []
    for name, section in contract.model_dump(mode="json").items():
        lines = [f"[{name}]", *(toml_line(key, value) for key, value in section.items())]
        sections.append("\n".join(lines))
    return "\n\n".join(sections)


def _cross_field_problems(path: Path, text: str, contract: Contract) -> Iterator[Problem]:
    def at(section: str, key: str) -> str:
        return where_in(path, text, (section, key))

    training = contract.training
    yield from _split_problems(at, contract.data, contract.split)
    processes = contract.resources.num_processes
    parts = training.parallelism.data_size(processes)
    if training.global_batch_size < parts:
        yield Problem(
            at("training", "global_batch_size"),
            str(training.global_batch_size),
            f"at least one row for each of {parts} processes with rows of their own",
            f"global_batch_size = {parts}  # or fewer processes",
        )
    if training.strategy == "single" and processes != 1:
        yield Problem(
            at("training", "strategy"),
            '"single"',
            "one process",
            'num_processes = 1  # in [resources]; or strategy = "ddp" or "fsdp"',
        )
    kept_by, chosen_by = training.metric, contract.selection.metric
    if chosen_by and kept_by != chosen_by:
        yield Problem(
            at("training", "metric"),
            f'"{kept_by}"',
            f'the metric of [selection], "{chosen_by}": the best by it may not have been kept',
            f'metric = "{chosen_by}"  # or leave it out',
        )
    yield from _adapter_problems(at("training", "adapter"), contract)
    yield from _baseline_problems(at("gate", "must_beat"), contract)
    gate = contract.gate
    if gate.mode == "non_inferior" and "fresher" in gate.also_better and not contract.data.time:
        yield Problem(
            at("gate", "also_better"),
            '"fresher"',
            "a time column, which tells whose data end later",
            'also_better = ["smaller"]  # or ["faster"]; or, in [data]: time = "…"',
        )
    if contract.scoring.shards > 1:
        yield from _sharding_problems(at("scoring", "shards"), contract)


def _split_problems(
    at: Callable[[str, str], str], data: DataSection, split: SplitSection
) -> Iterator[Problem]:
    """Yield what the split and its windows lack in [data]."""
    for role in ("time", "group"):
        if split.method == role and getattr(data, role) is None:
            yield Problem(
                at("split", "method"),
                f'"{role}"',
                f"a {role} column to split by",
                f'method = "auto"  # or, in [data]: {role} = "…"',
            )
    if split.resolved_method(data) == "group" and data.group in data.features:
        yield Problem(
            at("data", "features"),
            f"{data.group!r}, whose values in the test split are never trained on",
            "features that say something of an unseen group",
            f"drop {data.group!r} from this list  # or, in [data]: time, to split by time",
        )
    if split.resolved_method(data) == "hash" and not data.ids:
        yield Problem(
            at("data", "ids"),
            "",
            "columns that identify a row, to split by their hash",
            'ids = ["my_id"]  # in [data]; or name time or group there',
        )
    for key in ("train_days", "test_days"):
        days = getattr(split, key)
        if days is not None and data.time is None:
            remedy = 'remove this line  # or, in [data]: time = "…"'
            yield Problem(at("split", key), str(days), "a time column to count days on", remedy)


def _sharding_problems(place: str, contract: Contract) -> Iterator[Problem]:
    """Yield what a model that is scored in shards cannot be combined with."""
    gate, shards = contract.gate, f"{contract.scoring.shards}"
    needs = {
        "no [model.ensemble]: its members are scored whole": contract.model.ensemble,
        "no gate.max_milliseconds: it is measured in one process": gate.max_milliseconds,
        'no "faster" in gate.also_better: it is measured in one process': gate.times_champion,
        "no gate.processes: the shards score all rows together": gate.processes,
        "no selection.processes: the shards score all rows together": contract.selection.processes,
    }
    for expected, option in needs.items():
        if option:
            yield Problem(place, shards, expected, "shards = 1  # or remove the other option")


def _adapter_problems(place: str, contract: Contract) -> Iterator[Problem]:
    """Yield that an adapter has no weights to adapt, or cannot be averaged with champions."""
    adapter = contract.training.adapter
    if adapter is not None and not adapter.merge and contract.model.ensemble is not None:
        yield Problem(
            place,
            "an adapter that is exported alone",
            "whole weights, which [model.ensemble] averages with champions",
            "merge = true  # in [training.adapter]; or remove [model.ensemble]",
        )
    if adapter is not None and isinstance(contract.model.initial, Scratch):
        yield Problem(
            place,
            "an adapter of random weights",
            "weights to adapt, from [model.initial]",
            'source = "safetensors"  # in [model.initial], with uri and sha256; or remove the '
            "adapter",
        )


def _baseline_problems(place: str, contract: Contract) -> Iterator[Problem]:
    """Yield baselines in `gate.must_beat` that no step measures, so that nothing could pass."""
    gate, human = contract.gate, contract.skeleton.human
    for name in gate.must_beat:
        rest: list[JsonValue] = [each for each in gate.must_beat if each != name]
        without = toml_line("must_beat", rest)
        if gate.metric == "loss" and name in ("linear", "last_value", "task"):
            expected = "a metric of predictions: the loss of this baseline is unknown"
            yield Problem(place, f'"{name}"', expected, f"{without}  # or another metric")
        elif name == "last_value" and contract.data.time is None:
            expected = "a time column, which orders the rows"
            yield Problem(place, f'"{name}"', expected, f'{without}  # or, in [data]: time = "…"')
        elif name == "human" and not (gate.metric in human if gate.metric else human):
            expected = f"a figure of {gate.metric or 'the gate metric'} that people reach"
            remedy = f"human = {{ {gate.metric or 'METRIC'} = … }}  # in [skeleton]; or {without}"
            yield Problem(place, f'"{name}"', expected, remedy)
