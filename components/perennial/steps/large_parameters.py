"""Large parameters: a text that KFP passes to steps as itself or, when it is long, by its address.

All that one task gets must stay below 128 KiB, or a live backend refuses the run; on a laptop
Linux takes no longer argument of a program.
"""

import hashlib
import re
from dataclasses import dataclass

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError
from perennial.steps.parameters import decode_parameter, encode_parameter

# A step gets at most two such texts, contract and trigger, whose quotes are escaped twice. KFP's
# record of a run repeats the contract for each step.
CARRIED_BYTES = 16 * 1024
ADDRESS = re.compile(r"(?P<store>.+)/(?P<key>parcels/(?P<digest>[0-9a-f]{64})\.json)")


@dataclass(frozen=True)
class LargeParameter:
    """A text that is passed to a step.

    Attributes:
        text: The text.
        store_uri: The object store, which whoever starts the run and the step can both access.
    """

    text: str
    store_uri: str

    @property
    def value(self) -> str:
        """Return the encoded text, or its address if it is long; equal texts have equal addresses.

        Raises:
            PerennialError: something on the way would change the text, and it is not JSON.
        """
        encoded = encode_parameter(self.text)
        if len(encoded.encode()) <= CARRIED_BYTES:
            return encoded
        return f"{self.store_uri.rstrip('/')}/{self._key}"

    @property
    def exists_in_store(self) -> bool:
        """Whether the text is short, or is stored already."""
        if ADDRESS.fullmatch(self.value) is None:
            return True
        return open_store(self.store_uri).read(self._key) == self._content

    def store(self) -> str:
        """Store the text if it is long; return what KFP carries: the text or its address.

        Raises:
            PerennialError: it is long and the store cannot be written to.
        """
        value = self.value
        if ADDRESS.fullmatch(value):
            open_store(self.store_uri).write(self._key, self._content)
        return value

    @property
    def _content(self) -> bytes:
        return self.text.encode()

    @property
    def _key(self) -> str:
        return f"parcels/{hashlib.sha256(self._content).hexdigest()}.json"


def resolve(value: str) -> str:
    """Return the text of a parameter.

    Args:
        value: The encoded text, or its address.

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
