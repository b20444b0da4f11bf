"""The examples, from `perennial run` to the answers of their champions where nothing else is installed.

`make serving` runs this alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from perennial.contract import load_contract
from perennial.contracts.data import Split
from perennial.contracts.environment import Environment
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model
from perennial.registry.model_registry import open_registry
from perennial.runs import Home
from ports import get_free_port

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

# Example → arguments of its `prepare.py`, and what is made smaller in its contract.
EXAMPLES = {
    "flights": (["--months", "1-3"], {}),
    "digits": ([], {}),
    "text": (["--months", "1-3"], {"steps = 500": "steps = 40", "overfit_steps = 600": "overfit_steps = 300"}),
}  # fmt: skip
# What a place of serving has: what the version itself asks for, or the extra of the data image.
SETS = ("requirements.txt", "data extra")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs an example once: name of its model, its home, and its champion's files."""
    done = {}

    def run(example):
        if example not in done:
            done[example] = _trained(example, tmp_path_factory.mktemp(example))
        return done[example]

    return run


def _trained(example: str, folder: Path) -> tuple[str, Home, Path]:
    arguments, smaller = EXAMPLES[example]
    source = ROOT / "examples" / example
    text = (source / "contract.toml").read_text()
    for ours, small in smaller.items():
        assert ours in text
        text = text.replace(ours, small)
    (folder / "contract.toml").write_text(text)
    _call(sys.executable, source / "prepare.py", folder / "data", *arguments)
    home = Home(folder / "home")
    _call(
        sys.executable, "-m", "perennial.cli", "run", folder / "contract.toml", "--home", home.path
    )
    name = load_contract(folder / "contract.toml").model.name
    registry = open_registry(Environment(home.store_uri, home.tracking_uri, "t"))
    champion = registry.version_by_alias(name, "champion")
    assert champion is not None
    return name, home, registry.download(champion, folder / "files")


def _call(*command: object, **options: object) -> None:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def place(trained, tmp_path_factory):
    """A virtual environment with one of `SETS`."""
    made = {}

    def make(what):
        if what not in made:
            folder = tmp_path_factory.mktemp("place") / "venv"
            _call(sys.executable, "-m", "venv", folder)
            python = folder / "bin" / "python"
            # Every example's: pictures need one package more than numbers do.
            packages = {
                line
                for example in EXAMPLES
                for line in (trained(example)[2] / "requirements.txt").read_text().splitlines()
            }
            if what == "data extra":
                keep = [line for line in packages if line.startswith(("mlflow==", "torch=="))]
                packages = {*keep, f"{ROOT}[data]", f"--constraint={ROOT / 'constraints.txt'}"}
            _call(python, "-m", "pip", "install", "--quiet", *sorted(packages))
            made[what] = python
        return made[what]

    return make


def asked(folder: Path) -> tuple[pl.DataFrame, np.ndarray]:
    """The raw test rows, with every column, and what the evaluation predicts of them."""
    dataset = Dataset(Snapshot.read(folder))
    predictions = score_split(*load_model(folder), dataset, Split.TEST).predictions
    rows = pl.concat(list(dataset.batches(Split.TEST, 4096)))
    return rows, predictions.reshape(rows.height, -1)


@pytest.mark.parametrize("what", SETS)
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_clean_place_gives_the_evaluations_predictions(example, what, trained, place, ask):
    name, home, folder = trained(example)
    rows, expected = asked(folder)
    answer = ask(
        f"models:/{name}@champion", {"raw": rows},
        tracking_uri=home.tracking_uri, python=place(what),
    )  # fmt: skip
    worst = float(np.abs(np.array(answer["raw"]["rows"]) - expected).max())
    print(f"\n{example}, {what}: {rows.height:,} rows, largest difference {worst:.1e}")
    assert worst <= 1e-6
    assert answer["loaded"]["heavy"] == []


@pytest.fixture
def server(trained, tmp_path):
    """`mlflow models serve` of the flights' champion, on a port of its own."""
    name, home, _ = trained("flights")
    port = get_free_port()
    command = [
        sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", f"models:/{name}@champion",
        "--env-manager", "local", "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    # MLflow starts its server by a name that it looks up.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    log_file = tmp_path / "server.log"
    with log_file.open("w") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
            env=os.environ | {"MLFLOW_TRACKING_URI": home.tracking_uri, "PYTHONPATH": "", "PATH": path},
        )  # fmt: skip
    try:
        _await(f"http://127.0.0.1:{port}/ping", process, log_file)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def _await(url: str, process: subprocess.Popen, log_file: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log_file.read_text()[-3000:]
        try:
            urllib.request.urlopen(url).close()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.5)
        else:
            return
    raise AssertionError(f"no answer from the server: {log_file.read_text()[-3000:]}")


def post(url: str, body: object) -> tuple[int, dict]:
    content = json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def test_the_scoring_server_answers_raw_rows_and_says_what_is_wrong(server, trained):
    _, _, folder = trained("flights")
    rows, expected = asked(folder)
    task, _ = load_model(folder)
    rows = rows.head(500).select(list(task.columns.features))

    def body(frame):
        return {
            "dataframe_split": {"columns": frame.columns, "data": [list(r) for r in frame.rows()]}
        }

    status, answer = post(server, body(rows))
    assert status == 200
    found = np.array([list(entry.values()) for entry in answer["predictions"]])
    assert np.abs(found - expected[:500]).max() <= 1e-6

    status, answer = post(server, json.loads((folder / "serving_input_example.json").read_text()))
    assert status == 200, answer
    assert len(answer["predictions"]) == 5

    unseen = rows.head(2).with_columns(carrier=pl.lit("an airline of tomorrow"), more=pl.lit(1))
    status, answer = post(server, body(unseen))
    assert status == 200, "an unseen category is the unknown one, an unknown column is ignored"

    for wrong, problem in (
        (rows.drop("carrier"), "missing inputs ['carrier']"),
        (rows.with_columns(distance=pl.lit("far")), "distance"),
        (rows.with_columns(seats=pl.lit("many")), "column 'seats' cannot be read as Int64"),
    ):
        status, answer = post(server, body(wrong.head(2)))
        assert status == 400
        assert problem in answer["message"]
