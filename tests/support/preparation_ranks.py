"""What ranks do in the tests of preparing data: the first dawdles or fails, the others wait."""

import os
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from perennial.engine import worker
from perennial.engine.data import encoded
from perennial.engine.world.distributed import COLLECTIVE_TIMEOUT
from tiny_training import TinyTask

TIMEOUT = timedelta(seconds=0.5)


def prepare_longer_than_collectives_may_take() -> int:
    """Train, where fitting and encoding take longer than a step's messages are waited for."""
    prepare, fit, encode = worker.prepare_data, TinyTask.fit, encoded.encode_split

    def hurried(*args: object) -> None:
        dist.barrier()
        _set_pg_timeout(TIMEOUT, dist.group.WORLD)
        prepare(*args)
        _set_pg_timeout(COLLECTIVE_TIMEOUT, dist.group.WORLD)

    def slow_fit(self: TinyTask, train: object) -> None:
        time.sleep(3 * TIMEOUT.total_seconds())
        fit(self, train)

    def slow_encode(*args: object) -> None:
        time.sleep(3 * TIMEOUT.total_seconds())
        encode(*args)

    worker.prepare_data, TinyTask.fit, encoded.encode_split = hurried, slow_fit, slow_encode
    return worker.main()


def fail_to_encode() -> int:
    """Train on data that the first rank cannot encode, while the second waits."""

    def broken(*args: object) -> None:
        time.sleep(0.5)
        raise OSError(28, f"No space left on device of rank {os.environ['RANK']}")

    encoded.encode_split = broken
    return worker.main()
