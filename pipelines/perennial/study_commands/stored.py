"""Stored studies: find the one that is meant, with its data, trials and verdict."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import JsonValue

from perennial.clients.object_store import LocalObjectStore, ObjectStore
from perennial.contract import Contract, load_beside_its_task
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.study import StudyJudgement
from perennial.studies.conclusion import PAGE_NAME, Conclusion, conclude_study, read_trials
from perennial.studies.config import StudySection
from perennial.studies.next_study import FILE_NAME
from perennial.studies.records import StudyPlan, Trial, summarize_trials
from perennial.studies.store import read_record
from perennial.study_commands.definition import load_study


@dataclass(frozen=True)
class StoredStudy:
    """One study of a model in the store."""

    store: ObjectStore
    plan: StudyPlan

    @property
    def snapshot(self) -> Snapshot:
        """Return the study's data."""
        found = read_record(Snapshot, self.store, f"{self.plan.prefix}/{Snapshot.file_name}")
        if found is None:
            raise self._lacks(Snapshot.file_name)
        return found

    @property
    def judgement(self) -> StudyJudgement:
        """Return the study's verdict."""
        key = f"{self.plan.prefix}/{StudyJudgement.file_name}"
        found = read_record(StudyJudgement, self.store, key)
        if found is None:
            raise self._lacks("verdict")
        return found

    def _lacks(self, name: str) -> PerennialError:
        return PerennialError(
            f"the study {self.plan.study_digest[:16]} has no {name} yet",
            action="continue it with `perennial study run`, or judge what has ended: "
            "`perennial study analyze`",
        )

    def record(self) -> dict[str, JsonValue]:
        """Return how far it is, as JSON."""
        plan, trials = self.plan, read_trials(self.store, self.plan)
        best = self._best(trials)
        return {
            "study": plan.study_digest[:16],
            "model": plan.model,
            "goal": plan.study.goal,
            "metric": plan.metric,
            "trials": dict(Counter(f"{each.stage} {each.state}" for each in trials)),
            "planned": plan.last_search + 1,
            "running": self._running(),
            "best": None if best is None else best.model_dump(mode="json", exclude={"trainings"}),
        }

    def lines(self) -> Iterator[str]:
        """Yield how far it is, for people."""
        plan, trials = self.plan, read_trials(self.store, self.plan)
        yield f"{plan.model} study {plan.study_digest[:16]}: {plan.study.goal}"
        yield f"  {summarize_trials(plan, trials)}"
        yield f"  {plan.last_search + 1} planned, {self._running()} running"
        if (best := self._best(trials)) is not None:
            values = ", ".join(f"{option} = {value}" for option, value in best.values.items())
            yield f"  best: {values}; by validation rows, the verdict comes from test rows"

    def _running(self) -> int:
        """Return how many trials a worker has claimed; one that was killed may have left some."""
        return len(self.store.list(f"{self.plan.prefix}/claims/"))

    def _best(self, trials: list[Trial]) -> Trial | None:
        usable = [each for each in trials if each.stage != "confirm" and each.is_usable]
        return min(usable, key=self.plan.rank, default=None)

    def analyze(self, contract: Contract) -> Conclusion:
        """Analyse and judge it again from its records."""
        with TemporaryDirectory(prefix="perennial-study-") as folder:
            self.snapshot.write(Path(folder))
            page = Path(folder) / PAGE_NAME
            return conclude_study(self.plan, contract.gate, Path(folder), self.store, page)

    def file(self, name: str) -> Path:
        """Return one of its files on this machine: the page, or the next study.

        Raises:
            PerennialError: it has not been written.
        """
        key = f"{self.plan.prefix}/{name}"
        if self.store.read(key) is None:
            raise self._lacks(name)
        if isinstance(self.store, LocalObjectStore):
            return self.store.root / key
        return self.store.fetch(key, data_cache())

    def next_study(self) -> Path | None:
        """Return the file of the next study; None if nothing is left to ask."""
        content = self.store.read(f"{self.plan.prefix}/{FILE_NAME}")
        return self.file(FILE_NAME) if content else None


def stored_studies(store: ObjectStore, model: str = "") -> list[StoredStudy]:
    """Return the studies of a model, or of all models.

    Raises:
        PerennialError: a record cannot be read.
    """
    keys = [found.key for found in store.list(f"studies/{model}/" if model else "studies/")]
    return [
        StoredStudy(store, plan)
        for key in keys
        if key.endswith(f"/{StudyPlan.file_name}")
        and (plan := read_record(StudyPlan, store, key)) is not None
        and key.startswith(f"{plan.prefix}/")  # else of a version that named studies otherwise
    ]


def find_study(
    store: ObjectStore, path: Path, study: Path | None, digest: str
) -> tuple[Contract, StoredStudy]:
    """Return the contract and its one stored study that fits what was named.

    `study` is the file with the study's section; None for the contract's own, or any. `digest` is
    the beginning of the study's digest; empty for any.

    Raises:
        PerennialError: there is none, or several.
    """
    contract = load_study(path, study) if study else load_beside_its_task(path, with_study=True)
    model = contract.model.name
    plans = [each.plan for each in stored_studies(store, model)]
    fitting = [plan for plan in plans if plan.study_digest.startswith(digest)]
    # A digest is an answer to "several studies", which may be of the same question on other data.
    if contract.study is not None and not digest:
        asked = _question(contract.study)
        fitting = [plan for plan in fitting if _question(plan.study) == asked]
    if len(fitting) == 1:
        return contract, StoredStudy(store, fitting[0])
    known = [
        f"{plan.study_digest[:16]} ({plan.study.goal}; data {plan.snapshot[:8]}, code "
        f"{plan.code[:8]})"
        for plan in fitting or plans
    ]
    many = "several studies" if fitting else "no such study"
    raise PerennialError(
        f"{many} of {model} in {store.uri}",
        evidence=f"there are {'; '.join(known)}" if known else "there is none at all",
        action="name one with --digest" if known else "run one with `perennial study run`",
    )


def _question(study: StudySection) -> str:
    """Return a study without its goal's words, which do not enter its digest either."""
    return study.model_copy(update={"goal": ""}).to_json()
