"""Run as `python -I pyfunc_process.py MODEL ROWS TOGETHER ANSWER MARK`: serves a model, as new.

Nothing of Perennial is imported here, so that what MODEL carries is what runs: MLflow loads it, and
ANSWER gets the predictions of the Parquet file ROWS. Then each line of the input has TOGETHER rows
predicted alone, and the seconds it took are printed, so that models can be timed in turns. MARK
begins every line that is meant, since the model's own code may print as well.
"""

import sys
import time
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import polars as pl


def serve(model: Path, rows: Path, together: int, answer: Path, mark: str) -> None:
    """Predict the rows at once, then the first few alone, as often as asked."""
    started = time.perf_counter()
    served = mlflow.pyfunc.load_model(str(model))
    loaded = time.perf_counter() - started
    frame = pl.read_parquet(rows, glob=False).to_pandas()
    predictions = served.predict(frame)
    np.savez(answer, predictions=predictions.to_numpy(), seconds=loaded)
    few = frame.head(together)
    sys.stdout.write(f"{mark}\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        begun = time.perf_counter()
        served.predict(few)
        sys.stdout.write(f"{mark}{time.perf_counter() - begun!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
