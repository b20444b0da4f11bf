"""Re-evaluation: a registered version judged against the current champion, by its own gate."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.tracking import open_tracking
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.contracts.lineage import CONTRACT_FILE
from perennial.contracts.skeleton import SkeletonReport
from perennial.gate.config import JudgementConfig
from perennial.gate.judgement import judge_challenger
from perennial.registry.model_registry import ModelVersion
from perennial.registry_commands.catalogue import Catalogue


def re_evaluate(catalogue: Catalogue, version: ModelVersion) -> Verdict:
    """Return the gate's verdict on a version and the current champion, on the version's test rows.

    The rules are those of the contract that the version was trained under. A tracking run of its
    own holds the figures.

    Raises:
        PerennialError: the version has no contract, or its data cannot be read any more.
    """
    with TemporaryDirectory() as scratch:
        folder = catalogue.registry.download(version, Path(scratch))
        config = _gate(version, folder)
        now = datetime.now(UTC)
        run = f"{version.name}-{version.version}-judged-again-{now:%Y%m%d-%H%M%S-%f}"
        environment = replace(catalogue.environment, run_id=run)
        page = Path(scratch) / "report.html"
        verdict = judge_challenger(
            config, folder, folder, folder, page=page, environment=environment
        )
        # In a pipeline the run goes on after a promotion; this one has no further step.
        open_tracking(environment, version.name).finish()
        return verdict


def _gate(version: ModelVersion, folder: Path) -> JudgementConfig:
    lacking = [
        name for name in (CONTRACT_FILE, SkeletonReport.file_name) if not (folder / name).exists()
    ]
    try:
        contract = None if lacking else Contract.from_json((folder / CONTRACT_FILE).read_bytes())
    except ValueError:
        contract, lacking = None, ["a contract that this code can read"]
    if contract is None:
        raise PerennialError(
            f"{version.name} version {version.version} cannot be judged by the gate",
            evidence=f"it lacks {' and '.join(lacking)}: it was registered by another version of "
            "Perennial",
            action="train it again; --force promotes it unjudged",
        )
    return JudgementConfig(model=contract.model, gate=contract.gate)
