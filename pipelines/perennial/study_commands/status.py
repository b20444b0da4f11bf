"""Status of studies: how far each of a model's is, and its best trial so far."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from perennial.clients.object_store import ObjectStore
from perennial.studies.records import StudyPlan, Trial
from perennial.studies.store import read_record


@dataclass(frozen=True)
class StudyStatus:
    """A stored study with its trials so far."""

    plan: StudyPlan
    trials: list[Trial]
    running: int
    """Trials that a worker has claimed; some may be left of one that was killed."""

    def record(self) -> dict[str, JsonValue]:
        """Return it as JSON."""
        best = self._best()
        return {
            "study": self.plan.study_digest[:16],
            "model": self.plan.model,
            "goal": self.plan.study.goal,
            "metric": self.plan.metric,
            "trials": dict(Counter(f"{each.stage} {each.state}" for each in self.trials)),
            "planned": self.plan.last_search + 1,
            "running": self.running,
            "best": None if best is None else best.model_dump(mode="json", exclude={"trainings"}),
        }

    def lines(self) -> Iterator[str]:
        """Yield it for people."""
        plan = self.plan
        search = [trial for trial in self.trials if trial.stage != "confirm"]
        states = Counter(trial.state for trial in search)
        ends = ", ".join(f"{number} {state}" for state, number in states.items()) or "none ended"
        yield f"{plan.model} study {plan.study_digest[:16]}: {plan.study.goal}"
        yield f"  trials:  {len(search)} of {plan.last_search + 1} ({ends}), {self.running} running"
        best = self._best()
        baseline = next((trial.value for trial in search if trial.number == 0), None)
        if best is not None and best.value is not None:
            values = ", ".join(f"{option} = {value}" for option, value in best.values.items())
            yield f"  best:    {plan.metric} {best.value:.5g}, trial {best.number}: {values}"
        if baseline is not None:
            yield f"  baseline {plan.metric} {baseline:.5g}, on validation rows; the verdict comes "
            yield "           from test rows, after the confirmations"
        confirmed = len(self.trials) - len(search)
        if confirmed:
            yield f"  confirmations: {confirmed}"

    def _best(self) -> Trial | None:
        usable = [each for each in self.trials if each.stage != "confirm" and each.is_usable]
        return min(usable, key=self.plan.rank, default=None)


def study_states(store: ObjectStore, model: str) -> list[StudyStatus]:
    """Return the studies of a model, or of all models.

    Raises:
        PerennialError: a record cannot be read.
    """
    prefix = f"studies/{model}/" if model else "studies/"
    keys = [item.key for item in store.list(prefix)]
    plans = [key.rpartition("/")[0] for key in keys if key.endswith(f"/{StudyPlan.file_name}")]
    return [_state(store, folder, keys) for folder in plans]


def _state(store: ObjectStore, folder: str, keys: list[str]) -> StudyStatus:
    plan = read_record(StudyPlan, store, f"{folder}/{StudyPlan.file_name}")
    if plan is None:
        raise FileNotFoundError(folder)
    found = [read_record(Trial, store, key) for key in keys if key.startswith(f"{folder}/trials/")]
    running = sum(key.startswith(f"{folder}/claims/") for key in keys)
    return StudyStatus(plan, [trial for trial in found if trial is not None], running)
