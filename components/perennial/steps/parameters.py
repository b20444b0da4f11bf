"""Parameters: a JSON text written so that everything on its way to a step leaves it as it is.

Four programs on the way replace parts of any text. The kubelet expands `$(NAME)` and `$$` in a
container's arguments, and secrets are among the names. Argo evaluates `{{…}}` and `{{=…}}`.
Kubeflow replaces `{{$…}}`, and `[[…]]` in schedules; its local runner replaces `python3`. JSON can
write each of these characters as a number, which none of them knows and every JSON reader does.
"""

import json
import re

from perennial.contracts.errors import PerennialError

# `$` alone, too: the kubelet makes one of two.
REPLACED = re.compile(r"\$|\{\{|\[\[|python3")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPE = re.compile(r"\\(?:u(?P<code>0024|007b|005b|0070)|.)")
_MARK = re.compile(r"[${[p]")


def encode_parameter(text: str) -> str:
    """Write a text as a pipeline's parameter; one that holds nothing to replace stays as it is.

    Raises:
        PerennialError: the text is not JSON and something on its way would replace a part of it.
    """
    found = REPLACED.search(text)
    if found is None:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise PerennialError(
            "a pipeline's parameter cannot carry this text, which would be changed on the way",
            evidence=f"it holds {found.group()!r} and is not JSON: {text[:60]!r}",
            action="pass a JSON text, or leave these characters out",
        ) from error
    return _STRING.sub(lambda string: REPLACED.sub(_escape, string.group()), text)


def decode_parameter(value: str) -> str:
    """The text that was encoded, to the byte; other texts are left as they are."""
    if not value.startswith(("{", "[", '"')):
        return value
    return _ESCAPE.sub(_unescape, value)


def _escape(found: re.Match[str]) -> str:
    return _MARK.sub(lambda mark: f"\\u{ord(mark.group()):04x}", found.group())


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found["code"], 16)) if found["code"] else found.group()
