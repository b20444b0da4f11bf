"""Run as `python -I pyfunc_process.py DESCRIPTOR`: serves models, each in a process as new.

Nothing of Perennial is imported here, so that what a model carries is what runs. The socket
DESCRIPTOR brings a request for each model: its folder, its environment variables and descriptors.
Each is served by a fork of this process, in which MLflow and PyTorch are imported, but no model is
loaded. All processes end when the socket and their own inputs are closed.
"""

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import polars as pl

MAX_BYTES = 1 << 20


def main(requests: socket.socket) -> None:
    """Start a process for each request, until the socket is closed."""
    if sys.platform == "linux":  # Apple's frameworks, which PyTorch loads, do not survive a fork
        for module in ("torch", "torch.distributed.tensor", "pandas"):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)
    gc.freeze()  # a fork's collector would visit, and so copy, all of this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for what `_follow` leaves
    while True:
        content, descriptors, _, _ = socket.recv_fds(requests, MAX_BYTES, 4)
        if not content:
            return
        # A long request arrives in pieces; the descriptors came with the first.
        while not content.endswith(b"\n"):
            content += requests.recv(MAX_BYTES)
        if os.fork() == 0:
            requests.close()
            *streams, state = descriptors
            _follow(state)
            for standard, stream in enumerate(streams):
                os.dup2(stream, standard)
                os.close(stream)
            request = json.loads(content)
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["folder"])
            serve(Path(request["folder"]), request["together"], request["mark"])
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _follow(state: int) -> None:
    """Return in a new process; the old one writes its id, then its exit code, and ends."""
    # Inherited from `main`, SIG_IGN would let the kernel drop the exit code.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    process = os.fork()
    if process == 0:
        os.close(state)
        return
    os.write(state, f"{process}\n".encode())
    _, status = os.waitpid(process, 0)
    with contextlib.suppress(BrokenPipeError):
        os.write(state, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def serve(folder: Path, together: int, mark: str) -> None:
    """Predict all rows at once, then the first few alone, as often as asked.

    MLflow loads `model`, and `answer.npz` gets the predictions of `rows.parquet`. Then each line of
    the input has the first rows predicted, and the seconds it took are printed, so that models can
    be timed in turns.

    Args:
        folder: Holds these files.
        together: Number of rows to predict for each line.
        mark: Begins every line that is meant, since the model's own code may print as well.
    """
    started = time.perf_counter()
    # MLflow's warnings compare all installed packages with the model's, which takes 0.4 s.
    served = mlflow.pyfunc.load_model(str(folder / "model"), suppress_warnings=True)
    loaded = time.perf_counter() - started
    frame = pl.read_parquet(folder / "rows.parquet", glob=False).to_pandas()
    predictions = served.predict(frame).to_numpy()
    if predictions.dtype == object:  # texts; objects would be pickled
        predictions = predictions.astype(str)
    np.savez(folder / "answer.npz", predictions=predictions, seconds=loaded)
    few = frame.head(together)
    sys.stdout.write(f"{mark}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        begun = time.perf_counter()
        served.predict(few)
        sys.stdout.write(f"{mark}{time.perf_counter() - begun!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
