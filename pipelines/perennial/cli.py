"""The command line; `perennial --help` lists the verbs."""

import atexit
import gc
import locale
import os
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from perennial.arguments import (
    FAILED,
    AsJson,
    AskedProfile,
    ContractFile,
    DryRun,
    HomeFolder,
    ModelPlace,
    StudyFile,
    asked_profile,
    count,
    file,
    flag,
    open_home,
    print_json,
    print_lines,
    refuse_both,
    require_no_empty,
)
from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import end_soon
from perennial.deployment import verbs as cluster
from perennial.first_steps.verbs import doctor, import_, init, schema
from perennial.registry_commands import verbs as registry
from perennial.study_commands import verbs as studies
from perennial.verb_errors import Verb, prepare_process, refuse, report_errors

if TYPE_CHECKING:
    from perennial.runs import Home, RunRecord
    from perennial.supervisor import Launch

CONTINUE = "run it again, without --from or --new, to continue"

StartNew: TypeAlias = Annotated[bool, flag("--new", "do not continue an unfinished run")]
FirstStep: TypeAlias = Annotated[
    str, typer.Option("--from", metavar="STEP", help="repeat the latest run from this step on")
]

app = typer.Typer(
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (the run failed), 2 (bad input) or 130 (stopped)."""
    is_utf8 = locale.getencoding().lower() == "utf-8" or sys.flags.utf8_mode
    if arguments is None and not is_utf8:
        # Neither paths nor messages can be written in the code of this terminal.
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, "-P", "-m", __spec__.name, *sys.argv[1:]])
    code = _run_command(arguments)
    if arguments is None:  # this process is the command
        end_soon(code)
    return code


def _run_command(arguments: Sequence[str] | None) -> int:
    # The last collection would visit each of PyTorch's and KFP's objects, for half a second.
    atexit.register(gc.freeze)
    try:
        prepare_process()
        require_no_empty(sys.argv[1:] if arguments is None else arguments)
        command = typer.main.get_command(app)
        # Standalone, Typer would print errors in its own form and exit with its own codes.
        return command.main(arguments, prog_name="perennial", standalone_mode=False) or 0
    except PerennialError as error:
        return refuse(error)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        usage = f"{context.command_path if context else 'perennial'} --help"
        return refuse(PerennialError(error.format_message(), action=f"see `{usage}`"))


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"perennial {version('perennial')}")
        raise typer.Exit


@app.callback()
def _take_options(
    *,
    version_: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Continuous training for deep learning on Kubeflow."""


def check(contract: ContractFile, home: HomeFolder = None) -> int:
    """Validate the contract without running it, and print it with every default.

    The exit code is 1 if it is valid, but no training can be promoted.
    """
    from perennial.contract import (
        load_beside_its_task,
        load_checked,
        to_toml,
        with_suite_path,
    )
    from perennial.contract_help.obstacles import look_ahead
    from perennial.study_commands.definition import load_study

    has_study = load_beside_its_task(contract, with_study=True).study is not None
    checked = load_study(contract) if has_study else load_checked(contract)
    lines, is_possible = look_ahead(open_home(home, contract), checked)
    print(f"{to_toml(with_suite_path(contract, checked))}\n")
    print_lines(f"# {line}" for line in lines)
    print(f"# {contract} is valid" + ("" if is_possible else ", but will never be promoted"))
    return 0 if is_possible else FAILED


def options_(
    path: Annotated[str, typer.Argument(help="such as training.optimizer")] = "",
    *,
    all_: Annotated[bool, typer.Option("--all", "--advanced", help="also advanced ones")] = False,
) -> int:
    """Explain the contract's options: meaning, type, default, when to change them."""
    from perennial.contract_help.options import explain, overview

    return print_lines(explain(path, with_advanced=all_) if path or all_ else overview())


def compile_(out: Annotated[Path, file("target folder", metavar="FOLDER")] = Path()) -> int:
    """Write the pipelines' intermediate representation, ready to upload to Kubeflow Pipelines."""
    from perennial.compilation import PIPELINES, compile_pipeline

    return print_lines(compile_pipeline(name, out / f"{name}.yaml") for name in PIPELINES)


def probe(
    contract: ContractFile,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART...",
            help="learning-rate, batch-size, precision, compile, loading, processes",
        ),
    ] = None,
    largest: Annotated[int, count("largest micro-batch in rows", "--max")] = 8192,
    out: Annotated[Path | None, file("picture of the learning rate range test")] = None,
) -> int:
    """Measure what is fastest at equal quality on this machine, and print the options to take."""
    from perennial.contract import load_checked
    from perennial.probe import PARTS, probe_contract

    parts = only or PARTS
    if unknown := set(parts) - set(PARTS):
        raise PerennialError(
            f"{sorted(unknown)[0]!r} is not a part of the probe",
            action=f"name some of {', '.join(PARTS)}",
        )
    if out is not None and "learning-rate" not in parts:
        raise PerennialError("--out needs the part learning-rate", action="remove it")
    return print_lines(probe_contract(load_checked(contract), parts, largest, out))


def profile(
    contract: ContractFile,
    out: Annotated[Path | None, file("write it here (default: suite.json beside it)")] = None,
) -> int:
    """Draft a suite of Great Expectations from the contract's data: ranges, sets, distributions.

    Take data that you trust; edit the draft, commit it, and name it in `expectations.suite`.
    """
    from perennial.contract import load_beside_its_task
    from perennial.contract_help.suite_draft import write_draft

    target = out or contract.parent / "suite.json"
    return print_lines(write_draft(load_beside_its_task(contract), contract, target))


def _list_checks(is_asked: bool) -> None:
    if is_asked:
        from perennial.sanity import list_checks

        print_lines(list_checks())
        raise typer.Exit


def sanity(
    contract: ContractFile,
    more: Annotated[list[str] | None, typer.Argument(metavar="[CHECK]...", hidden=True)] = None,
    home: HomeFolder = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK...", help="these checks, and those they depend on"),
    ] = None,
    out: Annotated[Path | None, file("copy the report here")] = None,
    *,
    new: Annotated[bool, flag("--new", "measure again if nothing changed")] = False,
    list_: Annotated[
        bool,
        typer.Option(
            "--list", callback=_list_checks, is_eager=True, help="list all checks, and exit"
        ),
    ] = False,
) -> int:
    """Run the sanity checks of the task on this machine, as the pipeline does before training."""
    # As the pipeline's steps have it; PyTorch, which reads it, is imported later.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from perennial.console import Console
    from perennial.contract import load_beside_its_task
    from perennial.sanity import Sanity, closing_lines, result_lines, run_checks

    if more and not only:
        raise PerennialError(f"unexpected argument {more[0]!r}", action="name checks after --only")
    only = [*(only or ()), *(more or ())]
    code_folder = contract.resolve().parent
    request = Sanity.of(
        load_beside_its_task(contract), code_folder, open_home(home, contract), only
    )
    console = Console()
    report = None if new else request.load_stored()
    if report is None:
        report = run_checks(request, console)
    else:
        console.note(f"nothing has changed since {request.measured_at()}; --new measures again")
        for result in (each for each in report.results if not request.folds(each)):
            console.note("\n".join(result_lines(result)))
    page = request.page
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        page = Path(shutil.copyfile(page, out))
    console.note("\n".join([*closing_lines(request, report), f"report: {page}"]))
    return FAILED if report.failures else 0


def run(
    contract: ContractFile,
    home: HomeFolder = None,
    start_at: FirstStep = "",
    first: Annotated[int | None, count("partitions to start with; default: 3")] = None,
    until: Annotated[int | None, count("partitions to end with; default: all")] = None,
    *,
    new: StartNew = False,
    replay: Annotated[bool, flag("--replay", "let partitions arrive one by one")] = False,
) -> int:
    """Train a challenger and evaluate it; continues an unfinished run of this contract."""
    refuse_both("--new", "--from", new, start_at)
    refuse_both("--replay", "--new or --from", replay, new or start_at)
    if (first or until) and not replay:
        raise PerennialError("--first and --until need --replay", action="add --replay")
    launch = _launch(contract, home)
    if replay:
        return _replay(launch, first or 3, until)
    return _execute(launch, "continuous_training", start_at, new=new)


def monitor(
    contract: ContractFile,
    home: HomeFolder = None,
    start_at: FirstStep = "",
    *,
    new: StartNew = False,
) -> int:
    """Check new data for drift and decay; retrain if needed."""
    refuse_both("--new", "--from", new, start_at)
    return _execute(_launch(contract, home), "drift_monitoring", start_at, new=new)


def study_run(
    contract: ContractFile,
    study: StudyFile = None,
    home: HomeFolder = None,
    start_at: FirstStep = "",
    *,
    new: StartNew = False,
) -> int:
    """Search hyperparameters, and judge the best on rows that none was chosen by.

    Continues an unfinished run of this study; trials that ended are never run again.
    """
    from perennial.study_commands.definition import design_warnings, load_study
    from perennial.supervisor import Launch

    refuse_both("--new", "--from", new, start_at)
    checked = load_study(contract, study)
    print_lines(f"note: {warning}" for warning in design_warnings(checked))
    launch = Launch(open_home(home, contract), checked, contract.resolve().parent)
    return _execute(launch, "hyperparameter_study", start_at, new=new)


def status(
    model: ModelPlace = "",
    home: HomeFolder = None,
    profile: AskedProfile = None,
    *,
    json: AsJson = False,
) -> int:
    """Print which model is in production and what happened last; with a profile, on a cluster."""
    asked = asked_profile(profile, home)
    if asked:
        return cluster.show_status(asked, model, json=json)
    from perennial.overview import model_states

    place = open_home(home)
    states = model_states(place, model)
    if json:
        return print_json([state.record() for state in states])
    lines = [line for state in states for line in state.lines()]
    return print_lines(lines or [f"no runs in {place.path}"])


def runs(
    model: ModelPlace = "",
    home: HomeFolder = None,
    profile: AskedProfile = None,
    *,
    json: AsJson = False,
) -> int:
    """List the runs with their verdicts, newest last: all, a model's, or the one of MODEL@2.

    With a profile, those on a cluster.
    """
    asked = asked_profile(profile, home)
    if asked:
        return cluster.show_runs(asked, model, json=json)
    from perennial.overview import list_runs, run_lines, run_record

    place = open_home(home)
    listed = list_runs(place, model)
    if json:
        return print_json([run_record(each) for each in listed])
    return print_lines(run_lines(listed) if listed else [f"no runs in {place.path}"])


def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="a run's id, MODEL or MODEL@2; default: the newest")
    ] = "",
    home: HomeFolder = None,
    *,
    all_: Annotated[bool, flag("--all", "the index of all runs")] = False,
    no_open: Annotated[bool, flag("--no-open", "print the path only")] = False,
    json: AsJson = False,
) -> int:
    """Open a run's report, or the index of all runs, in the browser, and print its path."""
    from perennial.overview import find_run, run_record
    from perennial.run_page import write_index, write_run_report

    refuse_both("--all", "RUN", all_, run)
    refuse_both("--all", "--json", all_, json)
    place = open_home(home)
    found = find_run(place, run)
    if all_:
        path = write_index(place)
    # The report of a run under way is written again: it lacks the newest steps.
    elif found.report and found.run.status != "running":
        path = Path(found.report)
    else:
        path = write_run_report(place, found.run)
    if json:
        return print_json({**run_record(found), "report": str(path)})
    print(path)
    if not no_open:
        webbrowser.open(path.as_uri())
    return 0


def reap(
    namespace: Annotated[str, typer.Option(help="default: the pod's own")] = "",
    grace_hours: Annotated[
        float, typer.Option(min=0.0, max=87_600.0, help="how long an ended job is kept")
    ] = 24.0,
    *,
    dry_run: DryRun = False,
) -> int:
    """Delete training jobs on a cluster whose run has ended or is gone."""
    from perennial.reap import reap as delete_leftovers

    for decision in delete_leftovers(namespace, timedelta(hours=grace_hours), is_dry=dry_run):
        word = "keep" if not decision.is_due else "would delete" if dry_run else "deleted"
        print(f"{word:12} {decision.name}: {decision.reason}")
    return 0


def _launch(contract: Path, home: Path | None) -> "Launch":
    from perennial.contract import load_checked
    from perennial.supervisor import Launch

    checked = load_checked(contract)
    return Launch(open_home(home, contract), checked, contract.resolve().parent)


def _execute(launch: "Launch", pipeline: str, start_at: str = "", *, new: bool = False) -> int:
    from perennial.console import Console
    from perennial.supervisor import execute, failed_step

    home, contract, code = launch.home, launch.contract, launch.code_digest

    # Known before `execute` returns: Ctrl-C must find the run whose MLflow run is to be ended.
    chosen: list[RunRecord] = []

    def choose() -> "RunRecord":
        if start_at:
            chosen.append(home.latest_run(contract, pipeline, code))
            home.forget_from(chosen[0], start_at)
        else:
            unfinished = None if new else home.unfinished_run(contract, pipeline, code)
            chosen.append(unfinished or home.new_run(contract, pipeline, code))
        return chosen[0]

    try:
        ended = execute(launch, choose, Console())
    except KeyboardInterrupt:
        for run in chosen:
            _end_tracking_run(home, run, "KILLED")
        raise
    folder = home.folder(ended.run_id)
    if ended.status != "succeeded":
        _end_tracking_run(home, ended, "FAILED")
        print(failed_step(folder), file=sys.stderr)
        print(f"report: {folder / 'report.html'}", file=sys.stderr)
        print(f"{CONTINUE} from here", file=sys.stderr)
        return FAILED
    print(f"  report: {folder / 'report.html'}")
    return 0


def _end_tracking_run(home: "Home", run: "RunRecord", status: Literal["FAILED", "KILLED"]) -> None:
    """Give the MLflow run of a run that ended early its status and page, if a step opened one."""
    from perennial.clients.outages import errors_logged
    from perennial.clients.tracking import (
        NOT_ADDED,
        RUN_TAG,
        add_run_page,
        close_abandoned_runs,
    )
    from perennial.registry_commands.catalogue import Catalogue
    from perennial.run_page import find_run_results

    def is_own(tags: Mapping[str, str]) -> bool:
        return tags[RUN_TAG] == run.run_id

    catalogue = Catalogue(home)
    if catalogue.has_database():
        why = "its pipeline run ended early"
        close_abandoned_runs(catalogue.environment, is_own, why, run.model, status)
        with errors_logged(NOT_ADDED):
            page = (home.folder(run.run_id) / "report.html").read_text()
            decision = find_run_results(home, run).decision
            trigger = decision.trigger if decision is not None and decision.retrain else "manual"
            add_run_page(replace(home.environment, run_id=run.run_id), run.model, page, trigger)


def ui(
    home: HomeFolder = None,
    port: Annotated[int, count("port of the page on this machine", "--port")] = 5000,
) -> int:
    """Open MLflow's page of runs and models on the home's store; Ctrl-C ends it."""
    place = open_home(home)
    database = place.path / "mlflow.db"
    if place.tracking_uri.startswith("sqlite") and not database.exists():
        raise PerennialError(
            f"there is nothing to show in {place.path}",
            evidence="no run has opened its MLflow database",
            action="run a contract first, or name another home with --home FOLDER",
        )
    if place.tracking_uri.startswith("http"):
        return print_lines([f"MLflow is a server: {place.shown_tracking_uri}"])
    print(f"http://127.0.0.1:{port} shows {place.shown_tracking_uri}", flush=True)
    server = [sys.executable, "-m", "mlflow", "ui", "--port", str(port), "--workers", "1"]
    # Not an argument: those of a process are seen by all users of a machine.
    return subprocess.call(
        server, env={**os.environ, "MLFLOW_BACKEND_STORE_URI": place.tracking_uri}
    )


def _replay(launch: "Launch", first: int, until: int | None) -> int:
    from perennial.replay import Replay

    home, contract = launch.home, launch.contract
    replay = Replay(contract, home.path / "replay" / contract.model.name)
    wanted = replay.contract.data.uri
    own = [run for run in home.runs() if run.model == contract.model.name]
    others = [run for run in own if run.data_uri != wanted]
    if others:
        raise PerennialError(
            f"{home.path} already holds runs of {contract.model.name} on other data",
            evidence=f"{others[0].run_id} was run on {others[0].data_uri}: a champion that has "
            "seen the future would be compared with",
            action="replay in a home of its own: --home",
        )
    for arrival in replay.arrivals(first, until):
        print(f"\n=== {', '.join(arrival.keys)} arrived ===", flush=True)
        code = _execute(replace(launch, contract=replay.contract), arrival.pipeline)
        if code:
            return code
    return 0


AFTER_STOP = {
    run: f"; {CONTINUE}",
    monitor: f"; {CONTINUE}",
    study_run: f"; {CONTINUE}",
    sanity: "; nothing is kept",
} | dict.fromkeys(
    (cluster.submit, studies.submit, cluster.trigger, cluster.logs),
    "; a run on the cluster goes on, and `perennial cancel` ends it",
)
VERBS: dict[str, tuple[Verb, ...]] = {
    "First steps": (init, import_, doctor),
    "Contract": (check, options_, schema, compile_),
    "On this machine": (profile, sanity, probe, run, monitor, status, runs, report, ui),
    "Registered models": (
        registry.models,
        registry.compare,
        registry.explain,
        registry.promote,
        registry.rollback,
        registry.reproduce,
    ),
    "On a cluster": (
        cluster.deploy,
        cluster.submit,
        cluster.trigger,
        cluster.schedule,
        cluster.logs,
        cluster.cancel,
        cluster.undeploy,
        cluster.watch,
        cluster.exporter,
        reap,
        cluster.receive,
        cluster.sign,
        cluster.policy,
    ),
}


for heading, verbs in VERBS.items():
    for verb in verbs:
        name = verb.__name__.rstrip("_")
        app.command(name, rich_help_panel=heading)(
            report_errors(verb, name, AFTER_STOP.get(verb, ""))
        )

study_app = typer.Typer(
    help="Hyperparameter studies: search, judge on rows that no trial was chosen by, adopt.",
    no_args_is_help=True,
)
STUDY_VERBS: dict[str, Verb] = {
    "run": study_run,
    "submit": studies.submit,
    "status": studies.status,
    "analyze": studies.analyze,
    "adopt": studies.adopt,
    "report": studies.report,
}
for name, verb in STUDY_VERBS.items():
    study_app.command(name)(report_errors(verb, f"study {name}", AFTER_STOP.get(verb, "")))
app.add_typer(study_app, name="study", rich_help_panel="On this machine")


if __name__ == "__main__":
    sys.exit(main())
