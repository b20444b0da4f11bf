"""Executor: runs work over partitions in processes of this machine or on a Dask cluster.

Both are `concurrent.futures.Executor`s, and results do not depend on which of them did the work.
"""

import gc
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import ceil
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from typing_extensions import override

from perennial.clients.outages import outage_seconds, waiting_out_outages, waits
from perennial.contracts.environment import CORES, DaskScheduler
from perennial.contracts.errors import OutageError, PerennialError

if TYPE_CHECKING:
    from distributed import Client

T = TypeVar("T")
P = ParamSpec("P")
logger = logging.getLogger(__name__)
# At a prompt nothing is waited out, but a connection takes its time.
_PROMPT_SECONDS = 15.0
# Results are equal if these are: they decode, compute and encode.
_PACKAGES = ("numpy", "perennial", "polars", "pyarrow")
# Each process works alone on its partition: more threads would only take turns on the same cores.
# Polars counts its threads at import: a fork server that has imported it keeps its own number.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
_CGROUP = Path("/sys/fs/cgroup")
_starting = threading.Lock()  # held while the main module is another one


@contextmanager
def open_executor(
    tasks: int, workers: int | None = None, packages: Sequence[str] = ()
) -> Iterator[Executor]:
    """Open an executor for a number of tasks; Dask's where the environment names a scheduler.

    Functions must be importable by name, and arguments and results must be picklable. Where one
    process is enough, tasks run in a thread of this one. `workers` are processes on this machine,
    one a core by default and not more than tasks. `packages` are those that the tasks need beside
    the ones of every worker; Dask's workers must have them in the same versions, too.

    Raises:
        PerennialError: worker processes die, or a Dask worker runs other versions.
        OutageError: the Dask scheduler or its workers do not answer.
    """
    scheduler = DaskScheduler.read()
    if scheduler is not None:
        with _dask_executor(scheduler, packages) as executor:
            yield executor
        return
    workers = min(workers or available_cores(), tasks)
    if workers <= 1:
        with ThreadPoolExecutor(1) as executor:
            yield executor
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("forkserver"),
        initializer=_enter_worker,
        # The fork server keeps the variables of its start, which were before secrets were loaded.
        initargs=({**os.environ, **_ONE_THREAD},),
    )
    try:
        yield _LocalPool(pool)
    except BrokenProcessPool as error:
        raise PerennialError(
            f"one of {workers} worker processes was killed",
            evidence=str(error),
            action="the usual reason is memory: give the step more (`[pods.steps]` of the profile) "
            f"or fewer processes ({CORES}=1), or write smaller partitions",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def available_cores() -> int:
    """Return the cores that this container has: requested, or limited by affinity and cgroup.

    Raises:
        PerennialError: the environment names no number of cores.
    """
    named = os.environ.get(CORES, "")
    try:
        if named:
            return max(ceil(float(named)), 1)
    except ValueError as error:
        raise PerennialError(
            f"{CORES} is not a number of cores (got {named!r})", action="unset it to use all cores"
        ) from error
    cores = len(os.sched_getaffinity(0))
    return max(min(cores, ceil(_cgroup_cores(cores))), 1)


def _cgroup_cores(otherwise: float) -> float:
    """Return the processor quota of the cgroup (version 2, then 1) in cores."""
    try:
        if (_CGROUP / "cpu.max").exists():
            quota, period = (_CGROUP / "cpu.max").read_text().split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = ((_CGROUP / "cpu" / name).read_text() for name in names)
        return float(quota) / float(period) if float(quota) > 0 else otherwise
    except (OSError, ValueError, ZeroDivisionError):  # "max", or no cgroup
        return otherwise


class _LocalPool(Executor):
    """A process pool whose workers wait out outages as this process does."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        # Workers start here. They would run the user's script again, which may lack
        # `if __name__ == "__main__"`.
        with _starting:
            main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
            try:
                return self._pool.submit(partial(_call, waits(), fn), *args, **kwargs)
            finally:
                sys.modules["__main__"] = main


def _enter_worker(environment: dict[str, str]) -> None:
    gc.freeze()  # see `processes.enter_process`
    os.environ.clear()
    os.environ.update(environment)
    end_with_parent()


def end_with_parent(clean_up: Callable[[], object] = lambda: None) -> None:
    """Let a thread end this worker process, after a clean-up, as soon as its parent has ended.

    A worker holds both ends of its queue: it would wait permanently for work of a killed parent.
    """

    def wait(parent: BaseProcess) -> None:
        parent.join()
        clean_up()
        os._exit(1)

    if parent := multiprocessing.parent_process():
        threading.Thread(target=wait, args=(parent,), daemon=True).start()


def _call(waits_here: bool, work: Callable[..., T], *args: object, **kwargs: object) -> T:
    """Call, waiting out outages where the process that asks does."""
    with waiting_out_outages() if waits_here else nullcontext():
        return work(*args, **kwargs)


class _DaskExecutor(Executor):
    """Dask's own executor, whose workers wait out outages as this process does."""

    def __init__(self, client: "Client") -> None:
        # Not pure: Dask would answer an equal call with the result of an earlier one.
        self._inner = client.get_executor(pure=False)

    @override
    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = self._inner.submit(partial(_call, waits(), fn), *args, **kwargs)
        return future

    @override
    def map(
        self,
        fn: Callable[..., T],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
    ) -> Iterator[T]:
        # One message for all tasks, where the inherited method sends one for each.
        work = partial(_call, waits(), fn)
        found: Iterator[T] = self._inner.map(work, *iterables, timeout=timeout)
        return found


@contextmanager
def _dask_executor(scheduler: DaskScheduler, packages: Sequence[str]) -> Iterator[Executor]:
    # Here, because steps that read no partitions need none of it (0.6 s).
    from distributed import Client  # noqa: PLC0415
    from distributed.client import FutureCancelledError  # noqa: PLC0415
    from distributed.scheduler import KilledWorker  # noqa: PLC0415

    security, address = _security(scheduler), scheduler.address
    limit = outage_seconds() if waits() else _PROMPT_SECONDS
    try:
        client = Client(address, security=security, timeout=limit, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise OutageError(
            f"the Dask scheduler {address} does not answer",
            evidence=f"{type(error).__name__}: {error}",
            action="check that it runs, and that a network policy lets this pod reach it "
            "(k8s/components/dask)",
        ) from error
    try:
        _check_workers(client, address, limit, (*_PACKAGES, *packages))
        yield _DaskExecutor(client)
    except KilledWorker as error:
        raise PerennialError(
            f"a task killed {error.allowed_failures + 1} Dask workers",
            evidence=f"the last one was {error.last_worker.address}; a nanny ends a worker at 95% "
            "of its memory limit",
            action="see the workers' logs; if it is memory, give the workers more "
            "(k8s/components/dask) or write smaller partitions",
        ) from error
    except FutureCancelledError as error:
        raise OutageError(
            f"the connection to the Dask scheduler {address} was lost",
            evidence=str(error),
            action="check why it ended; the run can be repeated",
        ) from error
    finally:
        client.close()


def _security(scheduler: DaskScheduler) -> object:
    """Return certificates for an address with TLS; warn about one without."""
    from distributed import Security  # noqa: PLC0415

    if scheduler.address.startswith("tls://"):
        folder = Path(scheduler.tls_folder)
        files = [folder / name for name in ("ca.crt", "tls.crt", "tls.key")]
        missing = [str(path) for path in files if not path.is_file()]
        if not scheduler.tls_folder or missing:
            raise PerennialError(
                f"there are no certificates for the Dask scheduler {scheduler.address}",
                evidence=f"missing: {', '.join(missing)}",
                action="name the secret that holds them as `tls_secret` in [dask] of the profile",
            )
        ca, certificate, key = map(str, files)
        return Security(
            tls_ca_file=ca,
            tls_client_cert=certificate,
            tls_client_key=key,
            require_encryption=True,
        )
    logger.warning(
        "dask=%s is not encrypted and has no login: whoever reaches it runs code in its workers, "
        "as Dask's protocol unpickles; keep the network policies of k8s/components/dask or use TLS",
        scheduler.address,
    )
    return None


def _check_workers(client: "Client", address: str, limit: float, packages: Sequence[str]) -> None:
    """Check that there are workers, and that results cannot differ from those made here."""
    try:
        client.wait_for_workers(1, timeout=limit)
    except TimeoutError as error:
        raise OutageError(
            f"the Dask scheduler {address} has no workers",
            evidence=f"none came within {limit:g} s",
            action="check the pods of the workers (k8s/components/dask)",
        ) from error
    own = package_versions(packages)
    # A worker that ends just now answers with an error, and does no work either.
    workers = client.run(package_versions, packages, on_error="return")
    answers = {f"worker {name}": found for name, found in workers.items()}
    # The scheduler unpickles tasks, too.
    answers[f"scheduler {address}"] = client.run_on_scheduler(package_versions, packages)
    for place, found in answers.items():
        if isinstance(found, BaseException):
            continue
        other = [
            f"{name} {found[name]}, here {own[name]}" for name in own if found[name] != own[name]
        ]
        if other:
            raise PerennialError(
                f"the Dask {place} runs other versions than this process",
                evidence="; ".join(other),
                action="deploy it with the image that the profile names as images.data; to encode "
                "ahead, with the training's, images.trainer (k8s/README.md)",
            )


def package_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of packages; "none" where one is not installed."""
    found = {"python": sys.version.split()[0]}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found
