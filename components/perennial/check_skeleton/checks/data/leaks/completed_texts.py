"""Find texts that end with the text they are to be matched with, as logs that are saved later."""

from itertools import permutations

import polars as pl

from perennial.check_skeleton.subject import Subject

FEWEST_ROWS, FEWEST_TEXTS = 20, 20
# Of the rows, as of one source; queries that are a word of their answer's end are 2%.
COMPLETED = 0.1
# Times as often as with another row's text.
TIMES_CHANCE = 5.0
APART = 7  # rows to another one's text


def describe_completed_text(subject: Subject) -> str:
    """Describe a text column that ends with its row's other text; empty if none does.

    Of tasks that match the parts of a row with those of other rows. Texts that begin with the other
    one, as an article with its title, are no leak of that kind.
    """
    task = subject.task
    if not (task.needs_whole_batch or task.scored_together > 1):
        return ""
    rows = subject.train_rows.select(sorted(task.columns.features))
    texts = {
        column.name: column.str.to_lowercase().str.strip_chars()
        for column in rows.iter_columns()
        if column.dtype == pl.String and column.n_unique() >= FEWEST_TEXTS
    }
    for (name, one), (other, ending) in permutations(texts.items(), 2):
        own = _count_ends(one, ending)
        by_chance = _count_ends(one, ending.shift(APART))
        if own >= max(FEWEST_ROWS, COMPLETED * len(one), TIMES_CHANCE * by_chance):
            return f"{name} ends with {other} in {own / len(one):.0%} of the rows"
    return ""


def _count_ends(texts: pl.Series, endings: pl.Series) -> int:
    """Return how many texts end with another one that is shorter."""
    pairs = pl.DataFrame({"text": texts, "ending": endings}).drop_nulls()
    is_end = pl.col("text").str.ends_with(pl.col("ending"))
    is_shorter = pl.col("text").str.len_chars() > pl.col("ending").str.len_chars()
    return pairs.filter(is_end & is_shorter & (pl.col("ending") != "")).height
