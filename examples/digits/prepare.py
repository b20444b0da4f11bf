"""Run `python examples/digits/prepare.py OUT` to write 1,797 real handwritten digits as pictures.

The pictures are those that scikit-learn bundles (UCI, Alpaydin and Kaynak, 1998): 8 x 8 grey
pixels, here as PNG. When they were written nobody noted, so the arrival times are made up: the
pictures, shuffled once, arrive evenly from January to August 2024, one Parquet partition a month.

`--drift rotate` turns the pictures of the last two months by 25 degrees and `--drift blur` smooths
them, as a moved camera or a dirty lens would: drift that is made, to see it found.
"""

import argparse
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from io import BytesIO
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits

MONTHS = 8
DRIFTED_MONTHS = 2
START = datetime(2024, 1, 1)
END = datetime(2024, 1 + MONTHS, 1)
SEED = 0
INTENSITIES = 16  # of the source's pixels

DRIFTS: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "none": lambda picture: picture,
    "rotate": lambda picture: picture.rotate(25, Image.Resampling.BILINEAR),
    "blur": lambda picture: picture.filter(ImageFilter.GaussianBlur(0.7)),
}


def write_partitions(out: Path, *, drift: str = "none", rows: int | None = None) -> list[Path]:
    """Add the missing partitions `out/month=2024-MM/digits.parquet`; returns those written.

    The same call always writes the same bytes, and a partition appears whole or not at all.

    Args:
        out: Folder of the data set; made if missing.
        drift: What happens to the pictures of the last months, one of `DRIFTS`.
        rows: Write the first this many pictures only; None writes all.
    """
    table = build_rows(drift, rows)
    written = []
    for month in range(1, MONTHS + 1):
        path = out / f"month=2024-{month:02}" / "digits.parquet"
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        table.filter(pl.col("arrived_at").dt.month() == month).write_parquet(partial)
        partial.replace(path)
        written.append(path)
    return written


def build_rows(drift: str, rows: int | None = None) -> pl.DataFrame:
    """All pictures in the order of their made-up arrival."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(labels))[:rows]
    step = (END - START) / len(order)
    times = [START + timedelta(seconds=round((step * place).total_seconds()))
             for place in range(len(order))]  # fmt: skip
    drifted_from = datetime(2024, 1 + MONTHS - DRIFTED_MONTHS, 1)
    pictures = [
        png_of(pixels[index].reshape(8, 8), DRIFTS[drift if time >= drifted_from else "none"])
        for index, time in zip(order, times, strict=True)
    ]
    return pl.DataFrame(
        {
            "picture_id": [f"digit-{index:04}" for index in order],
            "arrived_at": times,
            "picture": pictures,
            "digit": labels[order].astype(np.int64),
        },
        schema_overrides={"arrived_at": pl.Datetime("us")},
    )


def png_of(pixels: NDArray[np.float64], change: Callable[[Image.Image], Image.Image]) -> bytes:
    """Intensities [8, 8] of 0 to 16 → a PNG of 0 to 255."""
    values = np.round(pixels * (255 / INTENSITIES)).astype(np.uint8)
    file = BytesIO()
    change(Image.fromarray(values)).save(file, format="PNG")
    return file.getvalue()


def main() -> None:
    """Write what is missing and print the partitions added."""
    parser = argparse.ArgumentParser(description="Write monthly partitions of digits.")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the data set")
    parser.add_argument("--drift", choices=DRIFTS, default="none", help="of the last two months")
    arguments = parser.parse_args()
    for path in write_partitions(arguments.out, drift=arguments.drift):
        print(path)


if __name__ == "__main__":
    main()
