"""Store of a study: its plan, the trials that ended, and who is running which.

`studies/<model>/<first 16 digits of the study's digest>/` holds `study.json`, `trials/NNNN.json`
and `claims/NNNN.json`. A trial's record is written once, when it has ended. A claim keeps others
from running the trial too; its owner renews it, and a claim that nobody renews is taken over.
"""

import logging
import threading
import time
from contextlib import AbstractContextManager
from typing import TypeVar

from perennial.clients.object_store import ConflictError, ObjectStore, StoredRecord
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.steps.background import running_beside
from perennial.studies.records import Stage, StudyPlan, Trial

RENEW_SECONDS = 10.0
STALE_SECONDS = 60.0
"""A claim that is not renewed for so long is taken over. The training's own lock, or the name of
its job, still keeps two of the same training apart."""
Record = TypeVar("Record", bound=Section)
logger = logging.getLogger(__name__)


class Claim(Section):
    """Who runs a trial."""

    owner: str
    renewals: int
    """Changes while the owner is alive. No clock is compared: an observer times how long it has
    not changed."""


class StageEnd(Section):
    """The end of a stage that the budget cut short, the same for each worker and at each resume."""

    last: int
    """The last trial that belongs to it."""


class StudyStore:
    """The records of one study, for one worker, whose threads may share it.

    `owner` names the worker and its next attempt, which takes over the worker's own claims.
    """

    def __init__(self, store: ObjectStore, plan: StudyPlan, owner: str) -> None:
        self.plan = plan
        self._store = store
        self._owner = owner
        self._trials: dict[int, Trial] = {}
        self._claims: dict[int, Claim] = {}
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._lock = threading.RLock()

    def begin(self, snapshot: Snapshot) -> None:
        """Write the plan and its snapshot, if no other worker has."""
        # The plan last: whoever finds it can rely on its snapshot.
        for record in (snapshot, self.plan):
            key = f"{self.plan.prefix}/{record.file_name}"
            try:
                self._store.replace(key, record.to_json().encode(), previous=None)
            except ConflictError:
                logger.info("%s is there: the study continues", key)

    def trial(self, number: int) -> Trial | None:
        """Return the record of a trial that has ended."""
        with self._lock:
            if number not in self._trials:
                found = read_record(Trial, self._store, self._key("trials", number))
                if found is None:
                    return None
                self._trials[number] = found
            return self._trials[number]

    def trials(self, numbers: range) -> list[Trial]:
        """Return the records of those of the trials that have ended, in their order."""
        return [found for number in numbers if (found := self.trial(number)) is not None]

    def finish(self, trial: Trial) -> Trial:
        """Store a trial's record, release the claim, and return the record that holds."""
        key = self._key("trials", trial.number)
        try:
            self._store.replace(key, trial.to_json().encode(), previous=None)
        except ConflictError:
            logger.warning(
                "trial=%d was ended by another worker too; its record holds", trial.number
            )
        self.release(trial.number)
        return self.trial(trial.number) or trial

    def claim(self, number: int) -> bool:
        """Claim a trial; False if another worker runs it, or it has ended."""
        with self._lock:
            if number in self._claims or self.trial(number) is not None:
                return False
            key = self._key("claims", number)
            content = self._store.read(key)
            if content is not None and not self._is_free(number, content):
                return False
            claim = Claim(owner=self._owner, renewals=0)
            try:
                self._store.replace(key, claim.to_json().encode(), previous=content)
            except ConflictError:
                return False
            self._claims[number] = claim
        # It may have ended between the two looks.
        if self.trial(number) is not None:
            self.release(number)
            return False
        return True

    def _is_free(self, number: int, content: bytes) -> bool:
        """Whether a stored claim is this worker's own, of an earlier attempt, or stale."""
        if Claim.from_json(content).owner == self._owner:
            return True
        now = time.monotonic()
        before, since = self._seen.get(number, (b"", now))
        if before != content:
            self._seen[number] = (content, now)
            return False
        return now - since > STALE_SECONDS

    def release(self, number: int) -> None:
        """Release a claim; another worker may take the trial at once."""
        with self._lock:
            try:
                # Renewed first, as no store deletes on condition: a new claim is not taken over.
                if number in self._claims and self._renew(number):
                    self._store.delete(self._key("claims", number))
            finally:  # one that could not be deleted must become stale
                self._claims.pop(number, None)

    def renewing(self) -> AbstractContextManager[None]:
        """Renew this worker's claims now and then while the block runs."""

        def renew(ended: threading.Event) -> None:
            while not ended.wait(RENEW_SECONDS):
                try:
                    self.renew()
                except PerennialError as error:  # the trials themselves wait for the store
                    logger.warning("claims cannot be renewed at present: %s", error)

        return running_beside(renew, "claims")

    def renew(self) -> None:
        """Renew this worker's claims."""
        with self._lock:
            for number in list(self._claims):
                self._renew(number)

    def _renew(self, number: int) -> bool:
        """Renew a claim; False if another worker took it over."""
        claim = self._claims[number]
        renewed = claim.model_copy(update={"renewals": claim.renewals + 1})
        before, after = (each.to_json().encode() for each in (claim, renewed))
        try:
            self._store.replace(self._key("claims", number), after, previous=before)
        except ConflictError:
            logger.warning("the claim of trial=%d was taken over", number)
            return False
        self._claims[number] = renewed
        return True

    def end_of(self, stage: Stage) -> int | None:
        """Return the last trial of a stage that the budget cut short; None if it did not."""
        found = self._end(stage).read()
        return None if found is None else found.last

    def cut(self, stage: Stage, last: int) -> int:
        """Cut a stage short behind a trial; return the trial behind which it is cut."""

        def change(found: StageEnd | None) -> tuple[StageEnd, int]:
            end = found or StageEnd(last=last)
            return end, end.last

        return self._end(stage).update(change)

    def _end(self, stage: Stage) -> StoredRecord[StageEnd]:
        return stored_record(StageEnd, self._store, f"{self.plan.prefix}/{stage}.end.json")

    def _key(self, kind: str, number: int) -> str:
        return f"{self.plan.prefix}/{kind}/{number:04d}.json"


def stored_record(kind: type[Record], store: ObjectStore, key: str) -> StoredRecord[Record]:
    """Return the place of a study's record."""
    action = "delete it and run the study again: finished trainings are used again"
    return StoredRecord(store, key, kind, f"the study's record {key}", action)


def read_record(kind: type[Record], store: ObjectStore, key: str) -> Record | None:
    """Return a stored record; None without one.

    Raises:
        PerennialError: it cannot be read.
    """
    return stored_record(kind, store, key).read()
