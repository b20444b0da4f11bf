"""Race: one rank of one cell, in which all contenders take turns."""

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist

from benchmarks.throughput.by_hand import BestLoop, StockLoop
from benchmarks.throughput.cells import CELLS, Cell, Subject, subject_of
from benchmarks.throughput.contender import Contender, Place
from benchmarks.throughput.frameworks import Accelerated, Fabric, Lightning, silence
from benchmarks.throughput.perennial import Perennial

CONTENDERS: Sequence[type[Contender]] = (
    Perennial, BestLoop, StockLoop, Fabric, Accelerated, Lightning,
)  # fmt: skip
WARMUP_SHARE = 0.25


@dataclass
class Race:
    """The times of one cell.

    Attributes:
        cell: What was compared.
        times: By contender, wall and processor seconds (the latter of all ranks) of each round.
        refusals: By contender, why it did not run.
    """

    cell: Cell
    times: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"cell": self.cell.name, "times": self.times, "refusals": self.refusals}

    @classmethod
    def from_dict(cls, cell: Cell, values: dict[str, Any]) -> Self:
        """Read back."""
        return cls(cell, values["times"], values["refusals"])


def run(
    cell: Cell, subject: Subject, place: Place, kinds: Sequence[type[Contender]], rounds: int
) -> Race:
    """All rounds of one cell, on this rank."""
    race = Race(cell)
    contenders = []
    for kind in kinds:
        reason = kind.refusal(cell)
        if reason:
            race.refusals[kind.name] = reason
            continue
        contenders.append(kind(cell, subject, place))
        race.times[kind.name] = []
    for contender in contenders:
        contender.choose_kernels()
        contender.run(max(2, round(cell.steps * WARMUP_SHARE)))
    for number in range(rounds):
        for contender in contenders[:: -1 if number % 2 else 1]:
            race.times[contender.name].append(timed(contender, cell.steps))
    for contender in contenders:
        contender.close()
    return race


def timed(contender: Contender, steps: int) -> tuple[float, float]:
    """Wall seconds of the slowest rank, processor seconds of all ranks."""
    contender.choose_kernels()
    contender.place.finish()
    dist.barrier()
    wall, processor = time.perf_counter(), time.process_time()
    contender.run(steps)
    contender.place.finish()
    spent = (time.perf_counter() - wall, time.process_time() - processor)
    mine = torch.tensor(contender.measured or spent, dtype=torch.float64)
    every = [torch.zeros(2, dtype=torch.float64) for _ in range(dist.get_world_size())]
    dist.all_gather(every, mine)
    table = torch.stack(every)
    return float(table[:, 0].max()), float(table[:, 1].sum())


def main() -> None:
    """Run the cell named on the command line by its number; the first rank writes the times."""
    number, rounds, updates = map(int, sys.argv[1:4])
    target = Path(sys.argv[4])
    silence()
    cell = replace(CELLS[number], steps=updates)
    race = run(cell, subject_of(cell.model), Place.join(), CONTENDERS, rounds)
    if dist.get_rank() == 0:
        target.write_text(json.dumps(race.to_dict()))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
