"""Likely values: what a person may have meant by a value of the wrong type or out of range."""

import difflib
import math
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from perennial.contract_file.synonyms import WORDS, Document, find_synonym, normal, plain

TRUE, FALSE = ("true", "yes", "on"), ("false", "no", "off")
PERCENT = 100.0
OPTION_UNITS = ("seconds", "minutes", "hours", "days", "mib", "gib")
"""Units that names of options state."""
TIMES = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "week", "weeks"), 7 * 86400.0),
    **dict.fromkeys(("month", "months"), 30 * 86400.0),
    **dict.fromkeys(("y", "year", "years"), 365 * 86400.0),
}
SIZES = {
    **dict.fromkeys(("k", "kb", "ki", "kib"), 2.0**10),
    **dict.fromkeys(("m", "mb", "mi", "mib"), 2.0**20),
    **dict.fromkeys(("g", "gb", "gi", "gib"), 2.0**30),
    **dict.fromkeys(("t", "tb", "ti", "tib"), 2.0**40),
}
FindWords: typing.TypeAlias = Callable[[str, Sequence[str]], Iterator[str]]
KIND_KEYS = ("type", "kind", "class", "algorithm", "name", "method", "shape", "mode")


def likely_values(
    value: JsonValue, field: FieldInfo | None, document: Document, name: str = ""
) -> Iterator[JsonValue]:
    """Yield the values that a person may have meant by one in a document, likeliest first.

    The option's name states its unit, such as `max_age_days`.
    """
    annotation = field.annotation if field is not None else None
    # Unchanged first: often the name alone was wrong.
    yield value
    if isinstance(value, str):
        yield from _like_text(value.strip(), list(_words_in(annotation)), name)
    # Before the numbers, of which Python counts True and False as two.
    if isinstance(value, bool):
        yield from [{}] if value else []
    elif isinstance(value, int | float):
        yield from _words_like(f"{value:g}", list(_words_in(annotation)))
        if math.isfinite(value):
            yield round(value)
        # 95 in the place of a share is percent.
        if _is_share(field) and 1.0 < value <= PERCENT:
            yield round(value / PERCENT, 9)
        if value in (0, 1):
            yield bool(value)
        yield str(value)
    if isinstance(value, list):
        yield from value if len(value) == 1 else []
        yield [str(each) for each in value]
    elif value is not None and not isinstance(value, dict):
        yield [value]
        yield [str(value)]
    sections = sections_in(annotation)
    # Of several kinds, one of exactly this name is meant before one of a similar name.
    for find_words in (_same_words, _near_words):
        for section in sections:
            yield from _sections_like(value, section, find_words)
            if isinstance(value, dict):
                yield from _tags_like(_rename_keys(value, section, document), section, find_words)


def _is_share(field: FieldInfo | None) -> bool:
    limits = [
        getattr(each, name, None)
        for each in (field.metadata if field is not None else ())
        for name in ("le", "lt")
    ]
    return any(limit is not None and limit <= 1.0 for limit in limits)


def _like_text(text: str, words: Sequence[str], name: str) -> Iterator[JsonValue]:
    yield from _words_like(text, words)
    yield from [True] if text.lower() in TRUE else [False] if text.lower() in FALSE else []
    number = re.fullmatch(r"[<>=≥≤]*\s*([-+]?[\d_,]*\.?\d+(?:[eE][-+]?\d+)?)\s*(%|[A-Za-z]*)", text)
    factor = _factor_of(number[2], name) if number is not None else None
    if number is not None and factor is not None:
        found = float(_with_a_point(number[1])) * factor
        yield from [int(found)] if found.is_integer() else []
        yield round(found, 9)
    if re.fullmatch(r"[\w./-]+\.py|[\w.]+\.[a-z]\w*", text):  # the class is not named
        yield f"{text.removesuffix('.py').replace('/', '.').strip('.')}:MyTask"
    if re.fullmatch(r"[\w./-]+\.py:\w+|[\w./-]+[.:]\w+", text):  # digits.py:Digits, digits.Digits
        module, _, name = text.replace("::", ":").rpartition(":" if ":" in text else ".")
        yield f"{module.removesuffix('.py').replace('/', '.').strip('.')}:{name}"
    if bound := re.fullmatch(r"(\w+)\s*[<>=:]+\s*(-?\d*\.?\d+)", text):  # auc > 0.8
        yield {bound[1]: float(bound[2])}
    parts = [part.strip(" '\"") for part in text.strip("[]()").split(",") if part.strip()]
    if len(parts) > 1:
        with suppress(ValueError):
            yield [float(part) for part in parts]
        yield typing.cast("JsonValue", parts)
    # A name as Kubernetes takes it, such as a model's.
    yield re.sub(r"^[^a-z]+|[^a-z0-9]+$", "", re.sub(r"[^a-z0-9]+", "-", text.lower()))[:63]


def _with_a_point(number: str) -> str:
    """Return a number as `float` reads it; a comma separates thousands or decimals."""
    decimal = r"[-+]?(?:0,\d+|\d+,(?!\d{3}$)\d+)(?:[eE][-+]?\d+)?"
    point = "." if re.fullmatch(decimal, number) else ""
    return number.replace(",", point).replace("_", "")


def _factor_of(unit: str, name: str) -> float | None:
    """Return what turns a number in this unit into the option's own; None if they do not fit."""
    given, parts = unit.lower(), name.split("_")
    for units in (TIMES, SIZES):
        own = next((units[part] for part in parts if part in OPTION_UNITS and part in units), None)
        if own is not None and given in units:
            return units[given] / own
    if not given or any(part.startswith(given.removesuffix("s")) for part in parts if given[1:]):
        return 1.0  # without a unit, or in the option's own, such as "100 steps"
    if "cpus" in parts and unit == "m":
        return 1e-3  # Kubernetes' thousandths of a processor
    return {"%": 1.0 / PERCENT, "k": 1e3, "K": 1e3, "M": 1e6}.get(unit)


def _words_like(text: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the allowed words that a text may mean."""
    yield from _same_words(text, words)
    yield from _near_words(text, words)


def _same_words(text: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the allowed words that a text is, in another spelling or in another framework."""
    simple = {plain(word): word for word in words}
    text = _last_part(text)
    if text in simple:
        yield simple[text]
    if WORDS.get(text) in words:
        yield WORDS[text]


def _near_words(text: str, words: Sequence[str]) -> Iterator[str]:
    """Yield the allowed word that resembles a text most."""
    simple = {plain(word): word for word in words}
    near = difflib.get_close_matches(_last_part(text), simple, n=1)
    yield from (simple[each] for each in near)


def _last_part(text: str) -> str:
    """Return the last part of a dotted path, such as `torch.optim.SGD`, as `plain` returns it."""
    return plain(text.rpartition(".")[2] or text)


def _sections_like(
    value: JsonValue, section: type[BaseModel], find_words: FindWords
) -> Iterator[JsonValue]:
    """Yield tables that a word or number in the place of a table may mean."""
    if isinstance(value, str):
        for name, field in section.model_fields.items():
            for word in find_words(value, list(_words_in(field.annotation))):
                yield {name: word}
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = next(
            (n for n, f in section.model_fields.items() if not [*_words_in(f.annotation)]), ""
        )
        yield {number: value}


def _tags_like(
    named: dict[str, JsonValue], section: type[BaseModel], find_words: FindWords
) -> Iterator[JsonValue]:
    """Yield a table, and then with other words for the key that chooses its kind, and others."""
    yield named
    for name, field in section.model_fields.items():
        words = list(_words_in(field.annotation))
        if isinstance(named.get(name), str) and words:
            for word in find_words(str(named[name]), words):
                yield named | {name: word}


def _rename_keys(
    value: dict[str, JsonValue], section: type[BaseModel], document: Document
) -> dict[str, JsonValue]:
    """Return a table with the names of a section for those of other frameworks, and its units."""
    named = dict[str, JsonValue]()
    for key, item in value.items():
        synonym = find_synonym(key)
        meant = [normal(key), synonym.path.rpartition(".")[2] if synonym else ""]
        meant += [tag_of_kind(section)] if normal(key) in KIND_KEYS else []
        name = next((each for each in meant if each in section.model_fields), key)
        if synonym is not None and name != normal(key) and synonym.path.endswith(f".{name}"):
            with suppress(ValueError, TypeError, ZeroDivisionError):
                item = synonym.convert(item, document)  # noqa: PLW2901
        texts = _like_text(item, [], name) if isinstance(item, str) else iter(())
        is_number = name in section.model_fields and not [
            *_words_in(section.model_fields[name].annotation)
        ]
        named[name] = next(texts, item) if is_number else item
    return named


def tag_of_kind(section: type[BaseModel]) -> str:
    """Return the key that chooses a section among several kinds; empty where there is one."""
    fields = section.model_fields.items()
    return next(
        (
            n
            for n, f in fields
            if len(typing.get_args(f.annotation)) == 1 and [*_words_in(f.annotation)]
        ),
        "",
    )


def _words_in(annotation: object) -> Iterator[str]:
    """Yield the words that a type allows."""
    if typing.get_origin(annotation) is typing.Literal:
        yield from (each for each in typing.get_args(annotation) if isinstance(each, str))
    elif not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        for argument in typing.get_args(annotation):
            yield from _words_in(argument)


def sections_in(annotation: object) -> list[type[BaseModel]]:
    """Return the sections that a field of this type may hold, in the order of its declaration."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [each for argument in typing.get_args(annotation) for each in sections_in(argument)]
