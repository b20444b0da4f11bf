"""RowBlock workers: processes that encode blocks ahead of the training.

They hand over through the cache's files, which the training maps: no example passes through a pipe.
Their number changes neither the order nor the content of a batch.
"""

import gc
import multiprocessing
import os
import signal
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from perennial.clients.outages import waiting_out_outages, waits
from perennial.contracts.errors import PerennialError
from perennial.data.executor import end_with_parent
from perennial.engine.data.blocks import BlockEncoder, EncoderRecipe, RowBlock

MAX_RESTARTS = 3
"""Ended worker processes before an error: one may be the victim of a neighbour's memory, four in a
row are not."""


@dataclass(frozen=True)
class ComingBlock:
    """A block that was given to a pool of processes."""

    seconds: Future[float]
    pool: ProcessPoolExecutor


class BlockWorkers:
    """A pool of processes that encode blocks; one that is killed is replaced."""

    def __init__(self, recipe: EncoderRecipe, count: int) -> None:
        self.count = count
        self._recipe = recipe
        self._restarts = 0
        # In a thread, as the first process waits for a fork server, which imports for seconds.
        self._starter = ThreadPoolExecutor(1, "block-workers")
        self._started = self._starter.submit(self._start)

    @property
    def is_ready(self) -> bool:
        """Whether a process has imported what it needs."""
        return self._started.done()

    @property
    def processes(self) -> list[int]:
        """Return the ids of the processes, once they are ready."""
        return list(self._started.result()._processes)

    def submit(self, block: RowBlock) -> ComingBlock:
        """Encode a block ahead."""
        try:
            return self._submit(block)
        except BrokenProcessPool as error:
            self._restart(error)
            return self._submit(block)

    def finish(self, block: RowBlock, coming: ComingBlock, place: str) -> float:
        """Wait for a block and return its seconds; encode it again where its process was killed.

        Raises:
            PerennialError: processes are killed again and again, or encoding failed.
        """
        while True:
            try:
                return coming.seconds.result()
            except BrokenProcessPool as error:
                if coming.pool is self._started.result():  # the others of its pool broke with it
                    self._restart(error, place)
                coming = self.submit(block)

    def close(self) -> None:
        """End the processes."""
        self._stop()
        self._starter.shutdown(wait=False)

    def _stop(self) -> None:
        self._started.add_done_callback(
            lambda started: started.result().shutdown(wait=False, cancel_futures=True)
        )

    def _submit(self, block: RowBlock) -> ComingBlock:
        pool = self._started.result()
        return ComingBlock(pool.submit(_encode, block, waits_out_outages=waits()), pool)

    def _restart(self, error: BrokenProcessPool, place: str = "") -> None:
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise PerennialError(
                "processes that encode rows were killed again and again",
                evidence=f"{self._restarts} times; at the end while encoding {place or 'a block'}",
                action="lower training.loading.encode_workers or give the machine more memory: "
                "each holds one block and what `encode` makes of it",
            ) from error
        self._stop()
        self._started = self._starter.submit(self._start)

    def _start(self) -> ProcessPoolExecutor:
        # Not forked from this process, whose threads (polars, torch) hold locks.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        pool = ProcessPoolExecutor(
            self.count, mp_context=context, initializer=_begin, initargs=(self._recipe,)
        )
        begun = [pool.submit(_is_prepared) for _ in range(self.count)]
        # One process is enough to encode ahead; the others may still import.
        wait(begun, return_when=FIRST_COMPLETED)
        return pool


_encoder: BlockEncoder | Exception = RuntimeError("the process was not prepared")


def _begin(recipe: EncoderRecipe) -> None:
    """Prepare a worker process: one thread, no signals of the terminal, no life of its own."""
    global _encoder  # noqa: PLW0603 (the one state of a worker process)
    gc.freeze()  # see `processes.enter_process`
    os.environ["POLARS_MAX_THREADS"] = "1"
    torch.set_num_threads(1)
    for number in (signal.SIGINT, signal.SIGTERM):  # the training decides when they end
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()
    try:
        _encoder = BlockEncoder(recipe)
    except Exception as error:  # the user's code; raised where a block is asked for
        _encoder = error


def _is_prepared() -> bool:
    return isinstance(_encoder, BlockEncoder)


def _encode(block: RowBlock, *, waits_out_outages: bool) -> float:
    if isinstance(_encoder, Exception):
        raise _encoder
    with waiting_out_outages() if waits_out_outages else nullcontext():
        return _encoder(block)
