"""A training process that has encoding processes and is then killed."""

import time
from pathlib import Path

from perennial.contracts.artifact import write_atomically
from perennial.engine.data.block_workers import BlockWorkers
from perennial.engine.data.blocks import EncoderRecipe


def wait_with_workers(recipe: EncoderRecipe, pids: Path) -> None:
    workers = BlockWorkers(recipe, 2)
    found = [str(process) for process in workers.processes]
    write_atomically(pids, "\n".join(found).encode())
    time.sleep(600)
