"""Overview: the model in production, and the results of the runs."""

from collections.abc import Iterator

from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.monitoring import RetrainingDecision
from perennial.registry.champion_records import ChampionRecords
from perennial.registry.model_registry import CHAMPION
from perennial.registry_commands.catalogue import Catalogue
from perennial.runs import Home, RunRecord, age, step_records


def status_lines(home: Home, model: str) -> Iterator[str]:
    """The champion of each model, its last runs, and why it was or was not retrained."""
    runs = [run for run in home.runs() if model in ("", run.model)]
    if not runs:
        yield f"no runs{f' of {model}' if model else ''} in {home.path}"
        return
    registry = Catalogue(home).registry
    for name in sorted({run.model for run in runs}):
        own = [run for run in runs if run.model == name]
        yield f"{name}"
        yield f"  champion   {_champion_line(registry.champion_records(name))}"
        yield f"  last run   {_run_line(own[-1])}"
        for label, step in (("trigger", "decide_retraining"), ("gate", "evaluate_model")):
            summary = _last_summary(home, own, step)
            if summary:
                yield f"  {label:<10} {summary}"


def run_lines(home: Home) -> Iterator[str]:
    """One line for each run, oldest first."""
    runs = home.runs()
    if not runs:
        yield f"no runs in {home.path}"
    for run in runs:
        verdict = _verdict_word(home, run)
        yield f"{run.run_id:<48} {run.pipeline:<20} {run.status:<12} {verdict}"


def _champion_line(records: ChampionRecords) -> str:
    if records.problem():
        # One model's records must not hide the other models.
        return f"unclear: {records.problem()}; see `perennial models {records.name} --repair`"
    champion = records.versions.get(records.alias)
    if champion is None:
        return "none yet"
    by_hand = " (alias moved by hand in MLflow)" if records.moved_by_hand() else ""
    return f"version {champion.version}, MLflow run {champion.run_id}{by_hand}"


def _run_line(run: RunRecord) -> str:
    return f"{run.run_id}  {run.status}  {age(run.created.timestamp())}"


def _last_summary(home: Home, runs: list[RunRecord], step: str) -> str:
    for run in reversed(runs):
        for record in step_records(home.folder(run.run_id)):
            if record.step == step and record.summary:
                return f"{record.summary} ({run.run_id})"
    return ""


def _verdict_word(home: Home, run: RunRecord) -> str:
    """Return `Promoted`, `Champion kept`, `Not retrained`, or the step that failed."""
    folder = home.folder(run.run_id)
    retraining, promoted = "", None
    for record in step_records(folder):
        outputs = folder / "steps" / record.key
        if record.status == "failed":
            return f"Failed: {record.step}"
        if record.step == "decide_retraining" and (outputs / "decision").is_dir():
            decision = RetrainingDecision.read(outputs / "decision")
            retraining = f"Retrained: {decision.trigger}" if decision.retrain else "Not retrained"
        if record.step == "evaluate_model" and (outputs / "verdict").is_dir():
            promoted = Verdict.read(outputs / "verdict").promote
        if record.step == "register_model" and (outputs / "registration").is_dir():
            # The champion may have moved, and then not been beaten.
            promoted = CHAMPION in Registration.read(outputs / "registration").aliases
    gate = {True: "Promoted", False: "Champion kept", None: ""}[promoted]
    return ", ".join(word for word in (retraining, gate) if word)
