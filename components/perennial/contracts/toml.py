"""TOML: options and values as they are written in a file."""

import json
import re

from pydantic import JsonValue

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_line(key: str, value: JsonValue) -> str:
    """Return an option as it is written in a file; one that is not set is a comment."""
    if value is None:
        return f"# {key} is not set"
    return f"{key} = {toml_value(value)}"


def toml_value(value: JsonValue) -> str:
    """Return a value as it is written in a file."""
    if isinstance(value, dict):
        pairs = (
            f"{key if BARE_KEY.fullmatch(key) else json.dumps(key)} = {toml_value(item)}"
            for key, item in value.items()
            if item is not None
        )
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
