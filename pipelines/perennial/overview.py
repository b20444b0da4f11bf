"""Overview: the model in production, and the runs of this machine, as text and as JSON."""

import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.contracts.version_decisions import VersionDecision, is_rolled_back
from perennial.registry.champion_records import ChampionRecords
from perennial.registry.version_files import ModelVersion
from perennial.registry_commands.catalogue import Catalogue
from perennial.registry_commands.listing import decision_lines, decision_records
from perennial.reports.text import duration, table_lines
from perennial.reports.verdict_card import RunFindings, find_results
from perennial.run_page import ListedRun
from perennial.runs import Home, RunRecord, age, step_records


def list_runs(home: Home, place: str = "") -> list[ListedRun]:
    """Return runs, oldest first: all, those of a model, or that which registered `MODEL@2`.

    Raises:
        PerennialError: the model or version is unknown.
    """
    return [*_newest_first(home, place)][::-1]


def _newest_first(home: Home, place: str) -> Iterator[ListedRun]:
    """Yield the runs of `list_runs`, each looked at when it is asked for."""
    name, _, wanted = place.partition("@")
    runs = home.runs()
    if name and name not in {run.model for run in runs}:  # the registry takes a second to ask
        _require_known("model", name, known_models(home, runs), home)
    version = Catalogue(home).find(place).version if wanted else ""
    for run in reversed(runs):
        if name in ("", run.model):
            listed = ListedRun.of(home, run)
            made = listed.findings.registration
            if not wanted or (made is not None and made.version == version):
                yield listed


def find_run(home: Home, wanted: str) -> ListedRun:
    """Return the newest run, a model's newest, the one that registered `MODEL@2`, or one by its id.

    Raises:
        PerennialError: there is none.
    """
    runs = {run.run_id: run for run in home.runs()}
    if wanted in runs:
        return ListedRun.of(home, runs[wanted])
    if wanted and "@" not in wanted:
        known = {*runs, *known_models(home, list(runs.values()))}
        _require_known("run and no model", wanted, known, home)
    found = next(_newest_first(home, wanted), None)
    if found is None:
        raise PerennialError(
            f"no run of {wanted} is on this machine" if wanted else "there are no runs yet",
            evidence=f"looked in {home.path}",
            action="`perennial runs` lists them",
        )
    return found


def known_models(home: Home, runs: Sequence[RunRecord]) -> set[str]:
    """Return the models that ran here or are registered."""
    return {run.model for run in runs} | set(Catalogue(home).names())


def _require_known(what: str, name: str, known: Collection[str], home: Home) -> None:
    """Refuse a name that nothing here has.

    Raises:
        PerennialError: it is unknown; the nearest name is the evidence.
    """
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=1)
    names = f"there are: {', '.join(sorted(known))}" if known else f"no runs in {home.path}"
    raise PerennialError(
        f"there is no {what} {name!r} in {home.path}",
        evidence=f"the nearest is {near[0]}" if near else names,
        action="`perennial models` and `perennial runs` list them; --home names another place",
    )


def run_lines(listed: Sequence[ListedRun]) -> Iterator[str]:
    """Yield a table of runs, oldest first."""
    header = ("RUN", "MODEL", "PIPELINE", "STARTED (UTC)", "TOOK", "VERDICT")
    rows = [
        (
            each.run.run_id,
            each.run.model,
            each.run.pipeline,
            f"{each.run.created:%Y-%m-%d %H:%M}",
            duration(each.seconds),
            verdict_text(each.findings),
        )
        for each in listed
    ]
    yield from table_lines(header, rows)


def verdict_text(found: RunFindings) -> str:
    """Return the verdict in a word, with the step that failed or the trigger that retrained."""
    if found.word in ("Failed", "Cancelled", "Running"):
        return f"{found.word}: {found.step}" if found.step else found.word
    if found.decision is not None and found.decision.retrain:
        return f"{found.word} (retrained: {found.decision.trigger})"
    return found.word


def run_record(each: ListedRun) -> dict[str, JsonValue]:
    """Return a run as JSON values."""
    return {
        "run": each.run.run_id,
        "model": each.run.model,
        "pipeline": each.run.pipeline,
        "started": each.run.created.isoformat(),
        "seconds": round(each.seconds, 3),
        "attempts": each.run.attempts,
        "verdict": each.findings.word,
        "headline": each.card.headline,
        "trigger": each.findings.trigger,
        "step": each.findings.step,
        "report": each.report,
    }


@dataclass(frozen=True)
class ModelStatus:
    """State of a model.

    Attributes:
        last: Its newest run; None without one on this machine.
        trigger: The latest decision on a retraining, in a sentence; empty without one.
        gate: The gate's latest verdict, in a sentence; empty without one.
        version: The version that was asked about; None for the model as a whole.
    """

    name: str
    records: ChampionRecords
    last: ListedRun | None
    trigger: str
    gate: str
    version: ModelVersion | None

    def lines(self) -> Iterator[str]:
        """Yield the state for people."""
        yield self.name
        for label, text in self._texts():
            yield f"  {label:<12} {text}"

    def _texts(self) -> Iterator[tuple[str, str]]:
        yield "champion", self._champion_line()
        undone = self._rollback()
        if undone is not None:
            number, decision = undone
            why = f"{decision.at} UTC by {decision.by}: {decision.reason}"
            yield "rolled back", f"version {number}, {why}"
        if self.last is not None:
            run = self.last.run
            word, took = verdict_text(self.last.findings), duration(self.last.seconds)
            moment = f"{age(run.created.timestamp())}, took {took}"
            yield "last run", f"{run.run_id}  {word}  {moment}"
        yield from (
            (label, text)
            for label, text in (("trigger", self.trigger), ("gate", self.gate))
            if text
        )
        if self.version is not None:
            for line in decision_lines(self.version):
                yield f"version {self.version.version}", line

    def record(self) -> dict[str, JsonValue]:
        """Return the state as JSON values."""
        champion, undone = self._champion(), self._rollback()
        record: dict[str, JsonValue] = {
            "model": self.name,
            "champion": champion.version if champion else None,
            "problem": self.records.problem() or None,
            "decisions_on_champion": decision_records(champion) if champion else [],
            "rolled_back": {"version": undone[0], **asdict(undone[1])} if undone else None,
            "last_run": run_record(self.last) if self.last else None,
            "trigger": self.trigger or None,
            "gate": self.gate or None,
        }
        if self.version is not None:
            record["version"] = self.version.version
            record["decisions_on_version"] = decision_records(self.version)
        return record

    def _champion(self) -> ModelVersion | None:
        return None if self.records.problem() else self.records.versions.get(self.records.alias)

    def _champion_line(self) -> str:
        if self.records.problem():
            # One model's records must not hide the other models.
            repair = f"`perennial models {self.name} --repair` proposes a repair"
            return f"unclear: {self.records.problem()}; {repair}"
        champion = self._champion()
        pending = f"; {self.records.pending()}" if self.records.pending() else ""
        if champion is None:
            return f"none yet{pending}"
        by_hand = " (alias moved by hand in MLflow)" if self.records.moved_by_hand() else ""
        since = [line for line in decision_lines(champion) if not line.startswith("rolled back")]
        return f"version {champion.version}{by_hand}, {since[-1]}{pending}"

    def _rollback(self) -> tuple[str, VersionDecision] | None:
        """Return the version that was last taken out of production and is out still."""
        found = [
            (number, decision)
            for number, version in self.records.versions.items()
            if is_rolled_back(version.tags)
            and (decision := VersionDecision.of(version.tags, "rolled_back")) is not None
        ]
        return max(found, key=lambda each: each[1].at, default=None)


def model_states(home: Home, place: str) -> list[ModelStatus]:
    """Return the state of each model, of one, or of one with a version of it (`MODEL@2`).

    Raises:
        PerennialError: the model or version is unknown.
    """
    name, _, wanted = place.partition("@")
    runs = home.runs()
    known = known_models(home, runs)
    if name:
        _require_known("model", name, known, home)
    catalogue = Catalogue(home)
    version = catalogue.find(place) if wanted else None
    return [
        _state(home, catalogue.champion_records(each), runs, version)
        for each in ([name] if name else sorted(known))
    ]


def _state(
    home: Home, records: ChampionRecords, runs: Sequence[RunRecord], version: ModelVersion | None
) -> ModelStatus:
    own = [run for run in runs if run.model == records.name]
    return ModelStatus(
        name=records.name,
        records=records,
        last=ListedRun.of(home, own[-1]) if own else None,
        trigger=_last_summary(home, own, "decide_retraining"),
        gate=_last_verdict(home, own),
        version=version,
    )


def _last_verdict(home: Home, runs: Sequence[RunRecord]) -> str:
    """Return the summary of the last verdict; where a run was judged again, of that."""
    for run in reversed(runs):
        found = find_results(step_records(home.folder(run.run_id)), run.model, "succeeded")
        if found.verdict is not None:
            return f"{found.verdict.summary} ({run.run_id})"
    return ""


def _last_summary(home: Home, runs: Sequence[RunRecord], step: str) -> str:
    for run in reversed(runs):
        for record in step_records(home.folder(run.run_id)):
            if record.step == step and record.summary:
                return f"{record.summary} ({run.run_id})"
    return ""
