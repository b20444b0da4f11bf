"""The healthy tasks of the examination: user's modules with their contracts and data."""

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from examination import (
    data,
    eighteenth_data,
    eighteenth_media_data,
    eighth_images_data,
    eighth_tables_data,
    eleventh_data,
    eleventh_media_data,
    fifteenth_data,
    fifteenth_media_data,
    fifth_data,
    fourteenth_data,
    fourteenth_media_data,
    fourth_data,
    nineteenth_data,
    nineteenth_media_data,
    ninth_tables_data,
    seventeenth_data,
    seventeenth_media_data,
    seventh_images_data,
    seventh_tables_data,
    seventh_texts_data,
    sixteenth_data,
    sixth_data,
    tenth_pictures_data,
    third_data,
    thirteenth_data,
    thirteenth_media_data,
    twentieth_data,
    twentieth_media_data,
    twentyfirst_data,
    twentyfirst_media_data,
    twentysecond_data,
    twentysecond_media_data,
    twentythird_data,
    twentythird_media_data,
)

DATA = (
    data,
    third_data,
    fourth_data,
    fifth_data,
    sixth_data,
    seventh_tables_data,
    seventh_images_data,
    seventh_texts_data,
    eighth_images_data,
    eighth_tables_data,
    ninth_tables_data,
    tenth_pictures_data,
    eleventh_data,
    eleventh_media_data,
    thirteenth_data,
    thirteenth_media_data,
    fourteenth_data,
    fourteenth_media_data,
    fifteenth_data,
    fifteenth_media_data,
    sixteenth_data,
    seventeenth_data,
    seventeenth_media_data,
    eighteenth_data,
    eighteenth_media_data,
    nineteenth_data,
    nineteenth_media_data,
    twentieth_data,
    twentieth_media_data,
    twentyfirst_data,
    twentyfirst_media_data,
    twentysecond_data,
    twentysecond_media_data,
    twentythird_data,
    twentythird_media_data,
)
"""The modules with the datasets."""
FOLDER = Path(__file__).parent / "healthy"
MODULE = "user_task"


@dataclass(frozen=True)
class Case:
    """One task as its user has it: a module, a contract and a dataset.

    Attributes:
        name: Of the task; of the bug where there is one.
        family: tables, images, text, retrieval, forecast, recsys or odd.
        source: The module, as it lies beside the contract.
        contract: TOML without `[model]` and `data.uri`.
        rows: Makes the dataset.
        bug: What is wrong, in a sentence; empty for a healthy task.
    """

    name: str
    family: str
    source: str
    contract: str
    rows: Callable[[], pl.DataFrame]
    bug: str = ""

    @property
    def task_class(self) -> str:
        """The class that the contract names."""
        return re.findall(r"^class (\w+)\((?:\w+, )?Task\)", self.source, re.M)[-1]

    def write(self, folder: Path) -> Path:
        """Put module, dataset and contract into a folder; the path of the contract."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{MODULE}.py").write_text(self.source)
        (folder / "data").mkdir(exist_ok=True)
        self.rows().write_parquet(folder / "data" / "part-0.parquet")
        model = f'[model]\nname = "examined"\ntask = "{MODULE}:{self.task_class}"\n\n'
        contract = folder / "contract.toml"
        contract.write_text(model + self.contract.replace("[data]\n", '[data]\nuri = "data"\n'))
        return contract

    def edited(self, edits: tuple[tuple[str, str], ...]) -> "Case":
        """The same with source or contract changed.

        Raises:
            ValueError: a text to replace does not occur exactly once in one of the two.
        """
        source, contract = self.source, self.contract
        for old, new in edits:
            if source.count(old) + contract.count(old) != 1:
                count = f"{source.count(old)} + {contract.count(old)}"
                raise ValueError(f"{self.name}: {old!r} occurs {count} times")
            source, contract = source.replace(old, new), contract.replace(old, new)
        return replace(self, source=source, contract=contract)


def load_case(path: Path) -> Case:
    """A healthy task from its file, whose docstring names data and contract."""
    _, header, body = path.read_text().split('"""', 2)
    description, _, rest = header.partition("data: ")
    dataset, _, contract = rest.partition("\n")
    return Case(
        name=path.stem,
        family=path.stem.partition("_")[0],
        source=f'"""{textwrap.shorten(description, 200)}"""\n{body}',
        contract=contract.strip() + "\n",
        rows=next(
            getattr(module, dataset.strip()) for module in DATA if hasattr(module, dataset.strip())
        ),
    )


def healthy_tasks() -> dict[str, Case]:
    """All healthy tasks by name."""
    return {path.stem: load_case(path) for path in sorted(FOLDER.glob("*.py"))}
