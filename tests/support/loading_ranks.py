"""What ranks do in the test of memory: load an exported model, and note the most that it took."""

import importlib
from pathlib import Path

from benchmarks.scoring_memory import Peak
from perennial.engine.export import load_model
from perennial.engine.parallelism.sharded_loading import load_sharded_model
from perennial.engine.scoring_worker import return_freed_memory
from perennial.engine.world.distributed import World

LIBRARIES = ("peft", "transformers.pytorch_utils", "torch._dynamo")


def note_memory(folder: Path) -> int:
    """Write what loading added to this process's anonymous memory, in bytes, to `peak-RANK`."""
    world = World.join()
    return_freed_memory()
    for library in LIBRARIES:  # of which the memory depends on no model
        importlib.import_module(library)
    with Peak() as peak:
        before = peak.bytes["RssAnon"]
        loaded = load_sharded_model(folder, world) if world.size > 1 else load_model(folder)
    del loaded
    (folder / f"peak-{world.rank}").write_text(str(peak.bytes["RssAnon"] - before))
    world.barrier()
    return 0
