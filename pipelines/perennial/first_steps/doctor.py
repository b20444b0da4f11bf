"""Doctor: whether this machine has what Perennial needs, one line each, with what to do."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perennial.arguments import existing_part
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.runs import Home

LEAST_FREE = 2e9
"""Bytes of checkpoints, MLflow's files and reports of a few runs of a small model."""
KFP = "2.17.0"  # as pyproject.toml pins it: the local runner's behaviour belongs to it
INSTALL = "pip install -e '.[demo]' -c constraints.txt"


@dataclass(frozen=True)
class Finding:
    """One line of the doctor.

    Attributes:
        is_good: None for what is not needed here, and therefore was not looked at.
    """

    name: str
    is_good: bool | None
    found: str
    action: str = ""

    def lines(self) -> Iterator[str]:
        """Yield the finding for people."""
        sign = {True: "✓", False: "✗", None: "-"}[self.is_good]
        yield f"  {sign} {self.name:<10} {self.found}"
        if self.action:
            yield f"    → {self.action}"


def examine(home: Home, profile: Path | None) -> Iterator[Finding]:
    """Yield a finding for each thing that is needed."""
    looks: tuple[Callable[[], Finding], ...] = (
        _python,
        _command,
        lambda: _package("torch", "torch", "trains models"),
        _device,
        lambda: _disk(home),
        lambda: _writable(home),
        lambda: _mlflow(home),
        _kfp,
        lambda: _cluster(profile),
    )
    for look in looks:
        yield look()


def _python() -> Finding:
    running = ".".join(map(str, sys.version_info[:3]))
    return Finding("Python", True, f"{running} in {sys.prefix}")


def _command() -> Finding:
    beside, found = Path(sys.executable).parent, shutil.which("perennial")
    if found:
        return Finding("perennial", True, f"{version('perennial')}, {found}")
    return Finding(
        "perennial",
        None,
        f"{version('perennial')}, not on the PATH",
        f'export PATH="{beside}:$PATH"   # or: source {beside}/activate',
    )


def _package(name: str, module: str, purpose: str) -> Finding:
    try:
        import_module(module)
        return Finding(name, True, version(name))
    except (ImportError, OSError, PackageNotFoundError) as error:
        return Finding(name, False, f"{purpose}, and cannot be imported: {error}", INSTALL)


def _device() -> Finding:
    try:
        from perennial.engine.world.distributed import describe_device
    except ImportError:
        return Finding("device", None, "not looked at without torch")
    return Finding("device", True, describe_device())


def _disk(home: Home) -> Finding:
    there = existing_part(home.path)  # below which a new home would be made
    free = shutil.disk_usage(there).free
    found = f"{free / 1e9:.1f} GB free at {there}"
    if free < LEAST_FREE:
        action = f"free {LEAST_FREE / 1e9:.0f} GB, or choose another disk with --home FOLDER"
        return Finding("disk", False, found, action)
    return Finding("disk", True, found)


def _writable(home: Home) -> Finding:
    """Try to write where the home is, or would be made; leave nothing behind."""
    there = existing_part(home.path)
    try:
        with tempfile.TemporaryFile(dir=there):
            state = "writable" if there == home.path else "can be made"
            return Finding("home", True, f"{home.path}, {state}")
    except OSError as error:
        action = "choose a folder that you may write to with --home FOLDER, or change its rights"
        return Finding("home", False, f"{home.path}: {error.strerror}", action)


def _mlflow(home: Home) -> Finding:
    address = os.environ.get("MLFLOW_TRACKING_URI", "")
    missing = _package("mlflow", "mlflow", "records runs and versions")
    if missing.is_good is False:
        return missing
    from perennial.clients.mlflow_client import open_mlflow

    database = home.path / "mlflow.db"
    uri = address or (home.tracking_uri if database.exists() else "")
    if not uri:
        return Finding("MLflow", True, f"{missing.found}; the first run makes {database}")
    try:
        # By default MLflow tries a server that does not answer for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        open_mlflow(Environment("", uri)).search_experiments(max_results=1)
    except PerennialError as error:
        return Finding("MLflow", False, f"{error.problem}; {error.evidence}", error.action)
    return Finding("MLflow", True, f"{missing.found}; {uri} answers")


def _kfp() -> Finding:
    found = _package("kfp", "kfp", "compiles and runs the pipelines")
    if found.is_good and found.found != KFP:
        return Finding("KFP", False, f"{found.found}, tested with {KFP}", f"pip install kfp=={KFP}")
    return Finding("KFP", found.is_good, found.found, found.action)


def _cluster(profile: Path | None) -> Finding:
    if profile is None:
        return Finding("cluster", None, "not asked: no --profile and no $PERENNIAL_PROFILE")
    from perennial.deployment.credentials import connect
    from perennial.deployment.profile import load_profile

    try:
        loaded = load_profile(profile)
        connect(loaded).find_pipeline("continuous-training")
    except PerennialError as error:
        return Finding("cluster", False, f"{error.problem}; {error.evidence}", error.action)
    return Finding("cluster", True, f"{loaded.server.pipelines_url} answers")
