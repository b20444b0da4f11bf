"""Stored studies: find the one that is meant, with its data and verdict."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.object_store import LocalObjectStore, ObjectStore
from perennial.contract import Contract, load_beside_its_task
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.study import StudyJudgement
from perennial.studies.conclusion import PAGE_NAME, Conclusion, conclude_study
from perennial.studies.config import StudySection
from perennial.studies.next_study import FILE_NAME
from perennial.studies.records import StudyPlan
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
            raise PerennialError(
                f"the study {self.plan.study_digest[:16]} has no {Snapshot.file_name}",
                action="continue it with `perennial study run`",
            )
        return found

    @property
    def judgement(self) -> StudyJudgement:
        """Return the study's verdict."""
        key = f"{self.plan.prefix}/{StudyJudgement.file_name}"
        found = read_record(StudyJudgement, self.store, key)
        if found is None:
            raise PerennialError(
                f"the study {self.plan.study_digest[:16]} has no verdict yet",
                action="continue it with `perennial study run`, or judge what has ended: "
                "`perennial study analyze`",
            )
        return found

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
            raise PerennialError(
                f"the study {self.plan.study_digest[:16]} has no {name} yet",
                action="`perennial study analyze` writes it from what has ended",
            )
        if isinstance(self.store, LocalObjectStore):
            return self.store.root / key
        return self.store.fetch(key, data_cache())

    def next_study(self) -> Path | None:
        """Return the file of the next study; None if nothing is left to ask."""
        content = self.store.read(f"{self.plan.prefix}/{FILE_NAME}")
        return self.file(FILE_NAME) if content else None


def find_study(
    store: ObjectStore, path: Path, study: Path | None, digest: str
) -> tuple[Contract, StoredStudy]:
    """Return the contract and its one stored study that fits what was named.

    Args:
        store: Where its records are.
        path: The contract.
        study: The file with the study's section; None for the contract's own, or any.
        digest: The beginning of the study's digest; empty for any.

    Raises:
        PerennialError: there is none, or several.
    """
    contract = load_study(path, study) if study else load_beside_its_task(path, with_study=True)
    model = contract.model.name
    keys = [found.key for found in store.list(f"studies/{model}/")]
    plans = [
        plan
        for key in keys
        if key.endswith(f"/{StudyPlan.file_name}")
        and (plan := read_record(StudyPlan, store, key)) is not None
        and key.startswith(f"{plan.prefix}/")  # else of a version that named studies otherwise
    ]
    fitting = [plan for plan in plans if plan.study_digest.startswith(digest)]
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
