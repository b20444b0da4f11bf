"""Rivals for the place of the champion, each in a process of its own, of known quality.

`python tests/support/rival_promotions.py JOB.json` starts them all and prints what became of each, and the
champions that an onlooker saw meanwhile.
"""

import gc
import json
import os
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory

from perennial.clients.tracking import open_tracking
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.engine.export import load_model
from perennial.registry.champion_records import ChampionMovedError
from perennial.registry.model_registry import CHAMPION, open_registry
from perennial.registry.promotion import Candidate, promote
from perennial.registry_commands import champion as moves
from perennial.registry_commands.catalogue import Catalogue
from perennial.runs import Home

NAME = "clicks"
QUALITY = "quality"


@dataclass(frozen=True)
class Job:
    """Who competes.

    Attributes:
        model: Folder of a challenger's files.
        qualities: Of each rival; equal ones are the same model, from another run.
    """

    model: str
    qualities: list[int]


def quality_of(registry, number: str) -> int:
    """Of a version; of no version, less than of any."""
    found = [version for version in registry.versions(NAME) if version.version == number]
    return int(found[0].tags[QUALITY]) if found else -1


def judge(catalogue: Catalogue, version) -> Verdict:
    """The gate, did it know the truth: which of the two is better."""
    champion = catalogue.registry.aliases(version.name).get(CHAMPION, "")
    better = int(version.tags[QUALITY]) > quality_of(catalogue.registry, champion)
    return Verdict(
        promote=better, summary="better" if better else "not better", reasons=(), comparisons=(),
        baselines={}, champion_version=champion, test_rows=1, test_blocks=1,
        performance_reference=(),
    )  # fmt: skip


def compete(job: Job, rival: int, start: int) -> str:
    """Judge, register, promote, and judge again when the champion moved; returns the result."""
    quality = job.qualities[rival]
    os.environ["PERENNIAL_RUN_ID"] = f"run-{rival}"
    environment = Environment.read()
    tracking, registry = open_tracking(environment, NAME), open_registry(environment)
    os.read(start, 1)  # all at once: the file ends when everybody is there
    moved = ""
    while True:
        champion = registry.aliases(NAME).get(CHAMPION, "")
        if quality <= quality_of(registry, champion):
            return f"{moved}rejected"
        with TemporaryDirectory() as scratch:
            candidate = Candidate(
                name=NAME, description="Predicts clicks.", fingerprint=f"quality-{quality}",
                package=copytree(job.model, Path(scratch) / "package"),
                version_tags={QUALITY: str(quality)}, model_tags={"team": "ads"},
                summary="Promote: it is better.", champion=champion,
            )  # fmt: skip
            try:
                promote(candidate, tracking, registry)
                return f"{moved}promoted"
            except ChampionMovedError:
                moved = "moved, then "
        begun = registry.take_over(NAME, candidate.fingerprint)
        if begun is not None:
            return settle(begun.version)


def settle(number: str) -> str:
    moves.re_evaluate = judge
    try:
        moves.promote(Catalogue(Home(Path())), NAME, number, "the champion moved", force=False)
    except PerennialError as error:
        if "is not shown to be better" not in error.problem:
            raise
        return "moved, then rejected"
    return "moved, then promoted"


def watch(stop: int) -> list[int]:
    """The quality of each champion that was seen, in order; each could be loaded."""
    registry, seen, numbers = open_registry(Environment.read()), [], []
    os.set_blocking(stop, False)
    while True:
        found = registry.version_by_alias(NAME, CHAMPION)
        if found is not None and found.version not in numbers[-1:]:
            with TemporaryDirectory() as scratch:
                load_model(registry.download(found, Path(scratch)))
            numbers.append(found.version)
            seen.append(int(found.tags[QUALITY]))
        try:
            os.read(stop, 1)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        return seen


def forked(answer: Path, parents: tuple[int, ...], work, *arguments: object) -> int:
    """The process id of a child that writes down what its work returns."""
    child = os.fork()
    if child == 0:
        try:
            for descriptor in parents:
                os.close(descriptor)
            answer.write_text(json.dumps(work(*arguments)))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def main() -> int:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    load_model(Path(job.model))  # what is loaded once need not be loaded by each
    gc.freeze()
    folder = Path(sys.argv[1]).parent
    (start, opened), (stop, watching) = os.pipe(), os.pipe()
    # A pipe ends for its reader when the last writer has closed it: no child may keep it open.
    ours = (opened, watching)
    onlooker = forked(folder / "seen.json", ours, watch, stop)
    rivals = [
        forked(folder / f"rival-{rival}.json", ours, compete, job, rival, start)
        for rival in range(len(job.qualities))
    ]
    os.close(opened)
    codes = [os.waitstatus_to_exitcode(os.waitpid(rival, 0)[1]) for rival in rivals]
    os.close(watching)
    codes.append(os.waitstatus_to_exitcode(os.waitpid(onlooker, 0)[1]))
    outcomes = [
        json.loads(file.read_text())
        if (file := folder / f"rival-{rival}.json").exists()
        else "died"
        for rival in range(len(rivals))
    ]
    print(
        json.dumps({"outcomes": outcomes, "seen": json.loads((folder / "seen.json").read_text())})
    )
    return max(map(abs, codes))


if __name__ == "__main__":
    sys.exit(main())
