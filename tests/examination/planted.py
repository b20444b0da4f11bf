"""A bug of the examination: a healthy task, a small edit, and what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from examination.tasks import Case, healthy_tasks


@dataclass(frozen=True)
class Bug:
    """A silent mistake: it raises nothing and trains on, to a worse or a dishonest result.

    Attributes:
        name: Unique; prefixed by the task's where cases are listed.
        task: The healthy task that gets the bug.
        what: What is wrong, in a sentence.
        seen: Where people meet it.
        edits: Texts to replace in module or contract, each of which occurs once.
        rows: What becomes of the dataset, if that is where the mistake lies.
    """

    name: str
    task: str
    what: str
    seen: str
    edits: tuple[tuple[str, str], ...] = ()
    rows: Callable[[pl.DataFrame], pl.DataFrame] | None = None

    def case(self, healthy: dict[str, Case]) -> Case:
        """The task with the bug."""
        sound = healthy[self.task]
        changed = replace(sound.edited(self.edits), name=f"{self.task}--{self.name}", bug=self.what)
        change = self.rows
        return replace(changed, rows=lambda: change(sound.rows())) if change else changed


def bug(name, task, what, seen, *edits, rows=None):
    """A bug whose edits are pairs, given flat: old, new, old, new."""
    return Bug(name, task, what, seen, tuple(zip(edits[::2], edits[1::2], strict=True)), rows)


def all_bugs() -> list[Bug]:
    """The bugs of all families."""
    from examination.bugs import (
        eighteenth,
        eighteenth_media,
        eighth_images,
        eighth_tables,
        fifteenth,
        fifteenth_media,
        fifth,
        forecasts,
        fourteenth,
        fourteenth_media,
        fourth,
        images,
        nineteenth,
        nineteenth_media,
        retrieval,
        second_a,
        second_b,
        seventeenth,
        seventeenth_media,
        seventh_images,
        seventh_tables,
        seventh_texts,
        sixteenth,
        sixth,
        tables,
        texts,
        third,
        thirteenth,
        twelfth,
        twentieth,
        twentieth_media,
        twentyfirst,
        twentyfirst_media,
        twentysecond,
        twentysecond_media,
        twentythird,
        twentythird_media,
    )

    first = [tables, images, texts, retrieval, forecasts]
    later = [second_a, second_b, third, fourth, fifth, sixth]
    seventh = [seventh_tables, seventh_images, seventh_texts]
    eighth = [eighth_images, eighth_tables]
    last = [
        twelfth,
        thirteenth,
        fourteenth,
        fourteenth_media,
        fifteenth,
        fifteenth_media,
        sixteenth,
        seventeenth,
        seventeenth_media,
        eighteenth,
        eighteenth_media,
        nineteenth,
        nineteenth_media,
        twentieth,
        twentieth_media,
        twentyfirst,
        twentyfirst_media,
        twentysecond,
        twentysecond_media,
        twentythird,
        twentythird_media,
    ]
    modules = [*first, *later, *seventh, *eighth, *last]
    return [each for module in modules for each in module.BUGS]


def all_cases() -> dict[str, Case]:
    """Healthy tasks and bugs by name."""
    healthy = healthy_tasks()
    return healthy | {case.name: case for case in (found.case(healthy) for found in all_bugs())}
