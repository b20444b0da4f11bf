"""Parameters: JSON texts of any length, which reach a step as they are.

Four programs on the way replace parts of any text. The kubelet expands `$(NAME)` and `$$` in a
container's arguments, and secrets are among the names. Argo evaluates `{{…}}` and `{{=…}}`.
Kubeflow replaces `{{$…}}`, and `[[…]]` in schedules; its local runner replaces `python3`. JSON can
write each of these characters as a number, which none of them knows and every JSON reader does.

A long text travels by its address in the object store: all that one task gets must stay below
128 KiB, or a live backend refuses the run; on a laptop Linux takes no longer argument of a program.
"""

import hashlib
import json
import re
from dataclasses import dataclass

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError

# `$` alone, too: the kubelet makes one of two.
REPLACED = re.compile(r"\$|\{\{|\[\[|python3")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# The dot takes an escaped backslash as a pair: the digits after it are text of the user.
_ESCAPE = re.compile(r"\\(?:u(?P<code>0024|007b|005b|0070)|.)")
_MARK = re.compile(r"[${[p]")
# A step gets at most two such texts, contract and trigger, whose quotes are escaped twice. KFP's
# record of a run repeats the contract for each step.
CARRIED_BYTES = 16 * 1024
SHOWN_CHARACTERS = 120
ADDRESS = re.compile(r"(?P<store>.+)/(?P<key>parcels/(?P<digest>[0-9a-f]{64})\.json)")


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
    """Return the text that was encoded, to the byte; other texts are left as they are."""
    if not value.startswith(("{", "[", '"')):
        return value
    return _ESCAPE.sub(_unescape, value)


def _escape(found: re.Match[str]) -> str:
    return _MARK.sub(lambda mark: f"\\u{ord(mark.group()):04x}", found.group())


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found["code"], 16)) if found["code"] else found.group()


@dataclass(frozen=True)
class LargeParameter:
    """A text that is passed to a step."""

    text: str
    store_uri: str
    """The object store, which whoever starts the run and the step can both access."""
    is_stored: bool = False
    """Whether it travels by its address although it is short enough."""

    @property
    def value(self) -> str:
        """Return the encoded text, or its address if it is long; equal texts have equal addresses.

        Raises:
            PerennialError: something on the way would change the text, and it is not JSON.
        """
        encoded = encode_parameter(self.text)
        if len(encoded.encode()) <= CARRIED_BYTES and not self.is_stored:
            return encoded
        return f"{self.store_uri.rstrip('/')}/{self._key}"

    @property
    def exists_in_store(self) -> bool:
        """Whether the text travels as itself, or is stored already."""
        if ADDRESS.fullmatch(self.value) is None:
            return True
        return open_store(self.store_uri).read(self._key) == self.text.encode()

    def store(self) -> str:
        """Store the text if its address travels; return what KFP carries: the text or its address.

        Raises:
            PerennialError: it is to be stored and the store cannot be written to.
        """
        value = self.value
        if ADDRESS.fullmatch(value):
            open_store(self.store_uri).write(self._key, self.text.encode())
        return value

    @property
    def _key(self) -> str:
        return f"parcels/{hashlib.sha256(self.text.encode()).hexdigest()}.json"


def shown_parameter(text: str) -> str:
    """Return a short text for people who compare runs in the dashboard; no step depends on it."""
    text = " ".join(text.split())
    text = text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"
    # A quotation mark marks the texts that are JSON.
    is_plain = REPLACED.search(text) is None and not text.startswith('"')
    return text if is_plain else encode_parameter(json.dumps(text))


def shown_text(value: str) -> str:
    """Return the text that `shown_parameter` got; texts typed into the dashboard as they are."""
    try:
        return str(json.loads(value)) if value.startswith('"') else value
    except ValueError:
        return value


def resolve(value: str) -> str:
    """Return the text of a parameter, which holds it encoded, or its address.

    Raises:
        PerennialError: what lies at the address is missing or is not what was stored.
    """
    address = ADDRESS.fullmatch(value)
    if address is None:
        return decode_parameter(value)
    content = open_store(address["store"]).read(address["key"])
    if content is None:
        raise _lost(f"there is no {value}", "it was stored when the run or schedule was made")
    digest = hashlib.sha256(content).hexdigest()
    if digest != address["digest"]:
        raise _lost(f"{value} is not what was stored", f"its SHA-256 is {digest}")
    return content.decode()


def _lost(problem: str, evidence: str) -> PerennialError:
    return PerennialError(
        problem,
        evidence=evidence,
        action="`perennial deploy` or `submit` the contract again, on a laptop `perennial run … "
        "--new`: that stores it again; exempt parcels/ from what deletes objects in this store",
    )
