"""The command line; `perennial --help` lists the verbs."""

import argparse
import os
import re
import sys
import webbrowser
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from perennial.arguments import (
    add_probe_options,
    add_reap_options,
    add_replay_options,
    add_report_options,
    add_sanity_options,
    path_of,
)
from perennial.contract import Contract, check_task, load_beside_its_task, to_toml
from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import ctrl_c_is_known, no_silent_exit, user_code
from perennial.deployment.verbs import ON_CLUSTER, add_deployment_verbs
from perennial.explanations import explained
from perennial.registry_commands.verbs import add_registry_verbs
from perennial.runs import Home, RunRecord

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count
TEXT_OPTIONS = ("--reason", "--evidence")
OPTION = re.compile(r"-h|--([a-z][a-z-]*(=.*)?)?", re.DOTALL)
CONTINUE = "run it again, without --from or --new, to continue"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (the run failed), 2 (bad input) or 130 (stopped)."""
    parser = _parser()
    options = parser.parse_args(
        _with_texts_attached(sys.argv[1:] if arguments is None else arguments)
    )
    _refuse_mixtures(parser, options)
    try:
        verb = f"perennial {_verb_of(options)}"
        with ctrl_c_is_known(), no_silent_exit(), user_code(verb, KeyboardInterrupt):
            return int(options.verb(options))
    except PerennialError as error:
        print(f"perennial: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        known = explained(error)
        if known is None:
            raise
        print(f"perennial: {known}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"\nstopped{_after_stop(options.verb)}", file=sys.stderr)
        return INTERRUPTED


def check(options: argparse.Namespace) -> int:
    """Validate the contract without running it, and print it with every default."""
    from perennial.registry_commands.power_estimate import power_estimate_lines
    from perennial.snapshot_data.manifest import take_snapshot

    contract = load_beside_its_task(options.contract)
    check_task(contract)
    snapshot = take_snapshot(contract.data, contract.split)
    unknown = sorted(set(contract.gate.slices) - set(snapshot.columns))
    if unknown:
        raise PerennialError(
            f"gate.slices names {unknown}, which are not columns of the dataset",
            evidence=f"its columns are: {', '.join(snapshot.columns)}",
        )
    print(to_toml(contract))
    splits = ", ".join(f"{rows:,} {split.value}" for split, rows in snapshot.split_rows.items())
    print(f"\n# {len(snapshot.files)} partitions, {snapshot.rows:,} rows: {splits}")
    features = snapshot.task_columns.features
    print(f"# {len(features)} features: {', '.join(features)}")
    for line in power_estimate_lines(_home(options), contract, snapshot):
        print(f"# {line}")
    print(f"# {options.contract} is valid")
    return 0


def probe(options: argparse.Namespace) -> int:
    """Measure on this machine a good micro-batch size or learning rate."""
    from perennial.probe import probe_batch_size, probe_lr

    contract = load_beside_its_task(options.contract)
    check_task(contract)
    if options.option == "lr":
        lines = probe_lr(contract, options.out or Path("probe-lr.html"))
    else:
        lines = probe_batch_size(contract, options.max or 8192)
    for line in lines:
        print(line, flush=True)
    return 0


def sanity(options: argparse.Namespace) -> int:
    """Run the sanity checks of the task on this machine, as the pipeline does before training."""
    from perennial.console import Console
    from perennial.sanity.answers import Sanity, closing_lines, result_lines

    contract = load_beside_its_task(options.contract)
    code_folder = options.contract.resolve().parent
    question = Sanity.of(contract, code_folder, _home(options), options.only)
    console = Console()
    found = None if options.new else question.kept()
    if found is not None:
        console.note(f"nothing has changed since {question.measured_at()}; --new measures again")
        for result in found.results:
            console.note("\n".join(result_lines(result)))
    else:
        # As the pipeline's steps have it; PyTorch, which reads it, is imported below.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        console.working("  … loading")
        from perennial.sanity.live import answer

        found = answer(question, console)
    page = question.copied_page(options.out) if options.out else question.page
    console.note("\n".join(["", *closing_lines(question, found), f"report: {page}"]))
    return FAILED if found.failures else 0


def run(options: argparse.Namespace) -> int:
    """Train a challenger and evaluate it; continues an unfinished run of this contract."""
    contract = load_beside_its_task(options.contract)
    check_task(contract)
    if options.replay:
        return _replay(options, contract)
    return _execute(options, contract, "continuous_training")


def monitor(options: argparse.Namespace) -> int:
    """Check new data for drift and decay; retrain if needed."""
    contract = load_beside_its_task(options.contract)
    check_task(contract)
    return _execute(options, contract, "drift_monitoring")


def status(options: argparse.Namespace) -> int:
    """Print which model is in production and what happened last; with --profile, on a cluster."""
    if options.profile:
        from perennial.deployment.verbs import show_status

        return show_status(options)
    from perennial.overview import status_lines

    print("\n".join(status_lines(_home(options), options.model)))
    return 0


def runs(options: argparse.Namespace) -> int:
    """List the runs, newest last."""
    from perennial.overview import run_lines

    print("\n".join(run_lines(_home(options))))
    return 0


def report(options: argparse.Namespace) -> int:
    """Open a run's report in the browser, and print its path."""
    from perennial.run_page import REPORT_FILE, write_run_report

    home = _home(options)
    found = [run for run in home.runs() if options.run in ("", run.run_id)]
    if not found:
        raise PerennialError(
            f"there is no run {options.run!r}" if options.run else "there are no runs yet",
            evidence=f"looked in {home.path}",
            action="`perennial runs` lists them",
        )
    folder = home.folder(found[-1].run_id)
    path = folder / REPORT_FILE
    if not path.exists() or found[-1].status == "running":
        write_run_report(found[-1], folder)
    print(path)
    if not options.no_open:
        webbrowser.open(path.as_uri())
    return 0


def options_(options: argparse.Namespace) -> int:
    """Explain the contract's options: meaning, type, default, when to change them."""
    from perennial.options import explain, overview

    is_overview = not (options.path or options.all)
    lines = overview() if is_overview else explain(options.path, with_advanced=options.all)
    print("\n".join(lines))
    return 0


def compile_(options: argparse.Namespace) -> int:
    """Write the pipelines' intermediate representation, ready to upload to Kubeflow Pipelines."""
    from perennial.compilation import PIPELINES, compile_pipeline

    for name in PIPELINES:
        print(compile_pipeline(name, options.out / f"{name}.yaml"))
    return 0


def reap(options: argparse.Namespace) -> int:
    """Delete training jobs on a cluster whose run has ended or is gone."""
    from perennial.reap import reap

    grace = timedelta(hours=options.grace_hours)
    for decision in reap(options.namespace, grace, is_dry=options.dry_run):
        word = "keep" if not decision.is_due else "would delete" if options.dry_run else "deleted"
        print(f"{word:12} {decision.name}: {decision.reason}")
    return 0


def _execute(options: argparse.Namespace, contract: Contract, pipeline: str) -> int:
    from perennial.console import Console
    from perennial.supervisor import Launch, execute, failed_step

    home = _home(options)
    launch = Launch(home, contract, options.contract.resolve().parent)
    code = launch.code_digest

    def choose() -> RunRecord:
        if options.start_at:
            chosen = home.latest_run(contract, pipeline, code)
            home.forget_from(chosen, options.start_at)
            return chosen
        unfinished = None if options.new else home.unfinished_run(contract, pipeline, code)
        return unfinished or home.new_run(contract, pipeline, code)

    ended = execute(launch, choose, Console())
    folder = home.folder(ended.run_id)
    if ended.status != "succeeded":
        driver_log = f"the driver failed\n\nlog: {folder / 'driver.log'}"
        print(failed_step(folder) or driver_log, file=sys.stderr)
        print(f"report: {folder / 'report.html'}", file=sys.stderr)
        print(f"{CONTINUE} from here", file=sys.stderr)
        return FAILED
    print(f"  report: {folder / 'report.html'}")
    return 0


def _replay(options: argparse.Namespace, contract: Contract) -> int:
    from perennial.replay import Replay

    home = _home(options)
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
    for arrival in replay.arrivals(options.first or 3, options.until):
        print(f"\n=== {', '.join(arrival.keys)} arrived ===", flush=True)
        code = _execute(options, replay.contract, arrival.pipeline)
        if code:
            return code
    return 0


def _verb_of(options: argparse.Namespace) -> str:
    return str(options.verb.__name__).rstrip("_")


def _after_stop(verb: Callable[[argparse.Namespace], int]) -> str:
    if verb in (run, monitor):
        return f"; {CONTINUE}"
    if verb in ON_CLUSTER:
        return "; a run on the cluster goes on, and `perennial cancel` ends it"
    return "; nothing is kept" if verb is sanity else ""


def _home(options: argparse.Namespace) -> Home:
    return Home(options.home.resolve())


def _with_texts_attached(arguments: Sequence[str]) -> list[str]:
    """Write `--reason -5%` as `--reason=-5%`, as argparse takes what begins with `-` for an option.

    What looks like one of our options stays, so that argparse reports the missing text.
    """
    attached: list[str] = []
    for word in arguments:
        is_text = bool(attached) and attached[-1] in TEXT_OPTIONS and not OPTION.fullmatch(word)
        if word.removesuffix("=--") in TEXT_OPTIONS:  # which argparse takes for the end of options
            attached.append(word.removesuffix("=--"))
        elif is_text:
            attached[-1] = f"{attached[-1]}={word}"
        else:
            attached.append(word)
    return attached


def _refuse_mixtures(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Options that would be ignored are mistakes."""
    given = vars(options)
    if given.get("option") == "lr" and options.max is not None:
        parser.error("--max belongs to `probe batch-size`")
    if given.get("option") == "batch-size" and options.out is not None:
        parser.error("--out belongs to `probe lr`")
    if not given.get("replay"):
        for name in ("first", "until"):
            if given.get(name) is not None:
                parser.error(f"--{name} needs --replay")
    elif given["start_at"] or given["new"]:
        parser.error("--replay continues by itself; it takes neither --from nor --new")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perennial", description="Continuous training for deep learning on Kubeflow."
    )
    default_home = Path(os.environ.get("PERENNIAL_HOME", ".perennial"))
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument(
        "--home", type=path_of, default=default_home,
        help="folder of store, MLflow database and runs (default: $PERENNIAL_HOME or .perennial)",
    )  # fmt: skip
    contract = argparse.ArgumentParser(add_help=False)
    contract.add_argument("contract", type=path_of, help="the training contract, a TOML file")
    again = argparse.ArgumentParser(add_help=False)
    either = again.add_mutually_exclusive_group()
    either.add_argument(
        "--new", action="store_true", help="start a new run even if one is unfinished"
    )
    either.add_argument(
        "--from", dest="start_at", default="", metavar="STEP",
        help="repeat the latest run of this contract from this step on",
    )  # fmt: skip
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(
        verb: Callable[[argparse.Namespace], int], *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        summary, name = str(verb.__doc__).splitlines()[0], verb.__name__.rstrip("_")
        added = verbs.add_parser(name, parents=parents, help=summary, description=summary)
        added.set_defaults(verb=verb)
        return added

    add(check, contract, home)
    measured = argparse.ArgumentParser(add_help=False)
    measured.add_argument("option", choices=("batch-size", "lr"), help="which option to measure")
    add_probe_options(add(probe, measured, contract))
    add_sanity_options(add(sanity, contract, home))
    add_replay_options(add(run, contract, home, again))
    add(monitor, contract, home, again)
    showing = add(status, home)
    showing.add_argument("model", nargs="?", default="", help="one model only")
    showing.add_argument("--profile", type=path_of, help="of the cluster to ask")
    add(runs, home)
    add_registry_verbs(add, home)
    add_deployment_verbs(add, contract)
    add_report_options(add(report, home))
    explaining = add(options_)
    explaining.add_argument(
        "path", nargs="?", default="", help="a section or an option, such as training.optimizer"
    )
    explaining.add_argument(
        "--all", "--advanced", action="store_true", help="show advanced options, too"
    )
    add_reap_options(add(reap))
    add(compile_).add_argument("--out", type=path_of, default=Path(), help="target folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
