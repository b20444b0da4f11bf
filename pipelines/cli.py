"""The command line: `perennial check | run | monitor | status | report | runs | compile`."""

import argparse
import os
import sys
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path

from components.contracts.errors import PerennialError
from pipelines.contract import Contract, load_contract, to_toml
from pipelines.runs import Home

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 (the run failed), 2 (bad input) or 130 (stopped)."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.verb(options))
    except PerennialError as error:
        print(f"perennial: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("\nstopped; the same command continues from here", file=sys.stderr)
        return INTERRUPTED


def check(options: argparse.Namespace) -> int:
    """Validate everything that can be known without running, and print the resolved contract."""
    from components.snapshot_data.manifest import take_snapshot

    contract = _load(options)
    _check_task(contract)
    snapshot = take_snapshot(contract.data, contract.split)
    print(to_toml(contract))
    splits = ", ".join(f"{rows:,} {split.value}" for split, rows in snapshot.split_rows.items())
    print(f"\n# {len(snapshot.files)} partitions, {snapshot.rows:,} rows: {splits}")
    features = snapshot.task_columns.features
    print(f"# {len(features)} features: {', '.join(features)}")
    print(f"# {options.contract} is valid")
    return 0


def run(options: argparse.Namespace) -> int:
    """Train a challenger and let the gate decide; continues an unfinished run of this contract."""
    contract = _load(options)
    _check_task(contract)
    if options.replay:
        return _replay(options, contract)
    return _execute(options, contract, "continuous_training")


def monitor(options: argparse.Namespace) -> int:
    """Look for drift and decay in new data; train again if the evidence says so."""
    contract = _load(options)
    _check_task(contract)
    return _execute(options, contract, "drift_monitoring")


def status(options: argparse.Namespace) -> int:
    """Say which model is in production and what happened last."""
    from pipelines.overview import status_lines

    print("\n".join(status_lines(_home(options), options.model)))
    return 0


def runs(options: argparse.Namespace) -> int:
    """List the runs, newest last."""
    from pipelines.overview import run_lines

    print("\n".join(run_lines(_home(options))))
    return 0


def report(options: argparse.Namespace) -> int:
    """Open a run's report in the browser, and print its path."""
    from pipelines.run_page import REPORT_FILE, write_run_report

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
    if not path.exists():
        write_run_report(found[-1], folder)
    print(path)
    if not options.no_open:
        webbrowser.open(path.as_uri())
    return 0


def compile_(options: argparse.Namespace) -> int:
    """Write the pipelines' intermediate representation, ready to upload to Kubeflow Pipelines."""
    from pipelines.compilation import PIPELINES, compile_pipeline

    for name in PIPELINES:
        print(compile_pipeline(name, options.out / f"{name}.yaml"))
    return 0


def _execute(options: argparse.Namespace, contract: Contract, pipeline: str) -> int:
    from pipelines.console import Console
    from pipelines.supervisor import Launch, execute, failed_step

    home = _home(options)
    record = None
    if options.start_at:
        record = home.latest_run(contract, pipeline)
        home.forget_from(record, options.start_at)
    elif not options.new:
        record = home.unfinished_run(contract, pipeline)
    record = record or home.new_run(contract, pipeline, {})
    ended = execute(Launch(home, contract, options.contract.resolve().parent), record, Console())
    folder = home.folder(ended.run_id)
    if ended.status != "succeeded":
        print(
            failed_step(folder) or f"the driver failed\n\nlog: {folder / 'driver.log'}",
            file=sys.stderr,
        )
        print(f"report: {folder / 'report.html'}", file=sys.stderr)
        print("the same command continues from the finished steps", file=sys.stderr)
        return FAILED
    print(f"  report: {folder / 'report.html'}")
    return 0


def _replay(options: argparse.Namespace, contract: Contract) -> int:
    from pipelines.replay import Replay

    replay = Replay(contract, _home(options).path / "replay" / contract.model.name)
    for arrival in replay.arrivals(options.first, options.until):
        print(f"\n=== {', '.join(arrival.keys)} arrived ===", flush=True)
        code = _execute(options, replay.contract, arrival.pipeline)
        if code:
            return code
    return 0


def _load(options: argparse.Namespace) -> Contract:
    # The user's task module lies beside the contract, as it will for the steps' processes.
    folder = str(options.contract.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return load_contract(options.contract)


def _check_task(contract: Contract) -> None:
    from components.engine.task import check_options, load_task_type

    check_options(load_task_type(contract.model.task), contract.model.options)


def _home(options: argparse.Namespace) -> Home:
    return Home(options.home.resolve())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="perennial", description="Continuous training for deep learning on Kubeflow."
    )
    default_home = Path(os.environ.get("PERENNIAL_HOME", ".perennial"))
    home = argparse.ArgumentParser(add_help=False)
    home.add_argument(
        "--home", type=Path, default=default_home,
        help="folder of store, MLflow database and runs (default: $PERENNIAL_HOME or .perennial)",
    )  # fmt: skip
    contract = argparse.ArgumentParser(add_help=False)
    contract.add_argument("contract", type=Path, help="the training contract, a TOML file")
    again = argparse.ArgumentParser(add_help=False)
    again.add_argument("--new", action="store_true", help="start anew even if a run is unfinished")
    again.add_argument(
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

    add(check, contract)
    running = add(run, contract, home, again)
    running.add_argument(
        "--replay", action="store_true", help="let the dataset's partitions arrive one by one"
    )
    running.add_argument(
        "--first", type=int, default=3, help="partitions that start a replay (default: 3)"
    )
    running.add_argument(
        "--until", type=int, help="partitions after which a replay ends (default: all)"
    )
    add(monitor, contract, home, again)
    add(status, home).add_argument("model", nargs="?", default="", help="one model only")
    add(runs, home)
    reporting = add(report, home)
    reporting.add_argument("run", nargs="?", default="", help="a run's id (default: the newest)")
    reporting.add_argument("--no-open", action="store_true", help="print the path only")
    add(compile_).add_argument("--out", type=Path, default=Path(), help="target folder")
    return parser


if __name__ == "__main__":
    sys.exit(main())
