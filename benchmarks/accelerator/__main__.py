"""One accelerator: throughput, utilisation, memory plan and the stall of a checkpoint.

    python -m benchmarks.accelerator [--rounds 5] [--sequences 8] [--pictures 256]

Takes a GPU where there is one; elsewhere the same parts run at small size on the CPU, which shows
that they run and nothing else. Every part is a process of its own, with the environment that the
engine's launcher gives. In each round every contender makes the same number of updates, in an order
that is reversed from round to round; ratios are taken within a round.

On a GPU: 90 GB of its memory (lower `--sequences` and `--pictures` where there is less), 32 GB of
the host's, and 30 GB in the folder for temporary files (`TMPDIR`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.elastic.utils.distributed import get_free_port

from benchmarks.accelerator.parts import PARTS, run_part
from benchmarks.accelerator.sizes import Sizes
from benchmarks.accelerator.tables import (
    checkpoint_lines,
    decoder_lines,
    head,
    memory_lines,
    race_lines,
)
from benchmarks.memory_plan import ALLOCATOR
from benchmarks.record import keep_page
from perennial.steps.processes import MALLOC


def start_part(part: str, arguments: Sequence[str], device_type: str) -> dict[str, Any]:
    """One part, in a process of its own."""
    port = get_free_port()
    is_resident = part.startswith("memory") and device_type == "cpu"
    with tempfile.TemporaryDirectory(prefix="accelerator-") as folder:
        result = Path(folder) / "result.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.accelerator", *arguments),
                *("--part", part, "--result", str(result)),
            ],
            env={
                **os.environ, **(ALLOCATOR if is_resident else MALLOC), "OMP_NUM_THREADS": "1",
                "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            },
            check=True,
        )  # fmt: skip
        content: dict[str, Any] = json.loads(result.read_text())
        return content


def main() -> None:
    """Measure all parts and write the tables, or be the process of one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sequences", type=int, help="per update of the decoder")
    parser.add_argument("--pictures", type=int, help="per update of the ResNet")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = Sizes.fitting(device_type, options.sequences, options.pictures)
    if options.part:
        options.result.write_text(json.dumps(run_part(options.part, sizes, options.rounds)))
        sys.stdout.flush()
        # Tearing groups and their threads down now and then aborts a finished process.
        os._exit(0)
    found = {part: start_part(part, sys.argv[1:], device_type) for part in PARTS}
    memory = [found[part] for part in PARTS if part.startswith("memory")]
    side = sizes.pixels
    images = f"ResNet ({sizes.resnet}), bfloat16, channels last, {side} x {side} pixels"
    lines = [
        *head(device_type, options.rounds),
        *decoder_lines(found["decoder"], sizes),
        *race_lines(images, found["resnet"], "images", sizes.pictures),
        *memory_lines(memory),
        *checkpoint_lines(found["checkpoint"]),
    ]
    keep_page("accelerator.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
