"""A year of flights, month by month: is a gated challenger better than never or always replacing?

    python -m benchmarks.replay [--until 12] [--home FOLDER]

Every month's rows are scored before anything has seen them, by: the first champion permanently
(`static`), the newest challenger whatever the gate decides (`newest`), the champion that Perennial
has at that time (`perennial`), and, trained on the same rows as `newest`, the constant prevalence,
logistic regression and scikit-learn's HistGradientBoosting.
"""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from benchmarks.record import keep_page
from perennial.console import Console
from perennial.contract import load_contract
from perennial.contracts.data import Split
from perennial.contracts.environment import Environment
from perennial.contracts.gate import Verdict
from perennial.contracts.monitoring import RetrainingDecision
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.export import load_model
from perennial.engine.task import Task
from perennial.registry.model_registry import open_registry
from perennial.replay import Arrival, Replay
from perennial.runs import Home, RunRecord
from perennial.supervisor import Launch, execute

EXAMPLE = Path("examples/flights")
FIRST = 3
PLAYERS = ("static", "newest", "perennial", "constant", "logistic", "hist_gb")


@dataclass(frozen=True)
class World:
    """One home in which time is replayed, always with the same pipeline after an arrival."""

    home: Home
    replay: Replay
    arrivals: Iterator[Arrival]

    @classmethod
    def at(cls, folder: Path, until: int) -> "World":
        """A world that begins before the first partition arrives."""
        contract = load_contract(EXAMPLE / "contract.toml")
        replay = Replay(contract, folder / "replay" / contract.model.name)
        return cls(Home(folder), replay, replay.arrivals(FIRST, until))

    def artifact(self, step: str, output: str) -> Path | None:
        """An output of a step in the newest run."""
        folder = self.home.folder(self.home.runs()[-1].run_id) / "steps"
        found = sorted(folder.glob(f"{step}-*/{output}"))
        return found[-1] if found else None


def run(world: World, pipeline: str) -> None:
    """Let the next partition arrive and run a pipeline on what is there, as `perennial` does."""
    next(world.arrivals)
    contract = world.replay.contract
    launch = Launch(world.home, contract, EXAMPLE.resolve())
    code = launch.code_digest

    def choose() -> RunRecord:
        unfinished = world.home.unfinished_run(contract, pipeline, code)
        return unfinished or world.home.new_run(contract, pipeline, code)

    ended = execute(launch, choose, Console())
    if ended.status != "succeeded":
        sys.exit(f"{ended.run_id} {ended.status}; see {world.home.folder(ended.run_id)}")


def champion_folder(home: Home, model: str, to: Path) -> tuple[str, Path]:
    """The champion's version and its downloaded artifact."""
    environment = Environment(home.store_uri, home.tracking_uri, "benchmark")
    registry = open_registry(environment)
    champion = registry.version_by_alias(model, "champion")
    if champion is None:
        sys.exit("the first training was not promoted; there is no champion to follow")
    return champion.version, registry.download(champion, to)


def model_scores(folder: Path, rows: pl.DataFrame) -> NDArray[np.float64]:
    """P(late) of each row."""
    task, model = load_model(folder)
    return score_batch(task, model, task.encode(rows)).predictions


def baseline_scores(
    task: Task, train: pl.DataFrame, rows: pl.DataFrame
) -> dict[str, NDArray[np.float64]]:
    """The baselines in their usual form, fitted on the rows that `newest` was trained on."""
    y = train[task.columns.label].to_numpy()
    numbers = [name for name, dtype in task.columns.features.items() if dtype != "String"]
    numbers = [name for name in numbers if name != "sched_hour"]
    texts = [name for name in task.columns.features if name not in numbers]
    known, asked = (frame.select(numbers).to_numpy() for frame in (train, rows))
    categories, asked_categories = (frame.select(texts).to_numpy() for frame in (train, rows))
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()),
             slice(0, len(numbers))),
            ("categories", OneHotEncoder(handle_unknown="ignore", min_frequency=20),
             slice(len(numbers), None)),
        ]
    )  # fmt: skip
    linear = make_pipeline(columns, LogisticRegression(max_iter=2000))
    linear.fit(_joined(known, categories), y)
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1).fit(categories)
    trees = HistGradientBoostingClassifier(
        categorical_features=list(range(len(numbers), len(numbers) + len(texts))), random_state=0
    )
    trees.fit(np.hstack([known, codes.transform(categories)]), y)
    return {
        "constant": np.full(rows.height, y.mean()),
        "logistic": linear.predict_proba(_joined(asked, asked_categories))[:, 1],
        "hist_gb": trees.predict_proba(np.hstack([asked, codes.transform(asked_categories)]))[:, 1],
    }


def _joined(numbers: NDArray[np.float64], texts: NDArray[np.object_]) -> NDArray[np.object_]:
    return np.hstack([numbers.astype(object), np.where(texts == None, "", texts)])  # noqa: E711


def what_happened(world: World) -> str:
    """Why it was retrained or not, and whether the challenger was promoted."""
    decision = world.artifact("decide_retraining", "decision")
    verdict = world.artifact("evaluate_model", "verdict")
    if decision is None:
        return ""
    found = RetrainingDecision.read(decision)
    if not found.retrain:
        return f"no retraining: {found.summary}"
    if verdict is None:
        return f"{found.trigger}, but no verdict"
    reached = Verdict.read(verdict)
    return f"{found.trigger} → {'promoted' if reached.promote else 'rejected'}: {reached.summary}"


def main() -> None:
    """Replay the year in two worlds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--until", type=int, default=12)
    parser.add_argument(
        "--home", type=Path, help="where to keep both worlds; default: a folder that is removed"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="perennial-replay-") as scratch:
        root = (options.home or Path(scratch)).resolve()
        rows = replay_year(root, options.until, Path(scratch))
    report(rows, options.until)


def replay_year(root: Path, until: int, scratch: Path) -> list[dict[str, Any]]:
    """One record for each month after the first training."""
    gated, newest = World.at(root / "perennial", until), World.at(root / "newest", until)
    model = gated.replay.contract.model.name
    source = sorted((EXAMPLE / "data").rglob("*.parquet"))
    run(gated, "continuous_training")
    run(newest, "continuous_training")
    _, static = champion_folder(gated.home, model, scratch / "static")
    records: list[dict[str, object]] = []
    for month in range(FIRST, until):
        rows = pl.read_parquet(source[month])
        version, champion = champion_folder(gated.home, model, scratch / f"champion-{month}")
        challenger = newest.artifact("select_checkpoint", "challenger")
        snapshot_folder = newest.artifact("snapshot_data", "snapshot")
        assert challenger is not None
        assert snapshot_folder is not None
        task, _ = load_model(challenger)
        train = Dataset(Snapshot.read(snapshot_folder)).scan(Split.TRAIN).collect()
        scores = {
            "static": model_scores(static, rows),
            "newest": model_scores(challenger, rows),
            "perennial": model_scores(champion, rows),
            **baseline_scores(task, train, rows),
        }
        y = rows[task.columns.label].to_numpy()
        records.append(
            {
                "month": month + 1,
                "prevalence": float(y.mean()),
                "champion": version,
                "roc_auc": {name: float(roc_auc_score(y, score)) for name, score in scores.items()},
                "log_loss": {
                    name: float(log_loss(y, np.clip(score, 1e-7, 1 - 1e-7)))
                    for name, score in scores.items()
                },
            }
        )
        run(gated, "drift_monitoring")
        records[-1]["then"] = what_happened(gated)
        run(newest, "continuous_training")
        print(json.dumps(records[-1]), flush=True)
    return records


def report(records: list[dict[str, Any]], until: int) -> None:
    """Print both tables and store them."""
    lines = [f"# Flights, month by month ({date.today()})", ""]
    lines += [f"{platform.machine()}, Python {platform.python_version()}", ""]
    for metric in ("roc_auc", "log_loss"):
        lines += [f"## {metric}", "", "| month | " + " | ".join(PLAYERS) + " |"]
        lines += ["|---" * (len(PLAYERS) + 1) + "|"]
        values = np.array([[record[metric][name] for name in PLAYERS] for record in records])
        for record, row in zip(records, values, strict=True):
            lines.append(
                f"| {record['month']} | " + " | ".join(f"{value:.4f}" for value in row) + " |"
            )
        lines.append(
            "| mean | " + " | ".join(f"{value:.4f}" for value in values.mean(axis=0)) + " |"
        )
        lines.append("")
    lines += ["## What Perennial did after each month", ""]
    lines += [f"- month {record['month']}: {record['then']}" for record in records]
    text = "\n".join(lines) + "\n"
    print(text)
    if until == 12:
        keep_page("replay.md", text)


if __name__ == "__main__":
    main()
