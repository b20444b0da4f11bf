"""Stored record: a small value in the object store that several runs read and change."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from perennial.clients.object_store import ConflictError, ObjectStore
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section

MAX_ATTEMPTS = 20
"""Failed attempts before an error; each is another run of the model that wrote first."""
Content = TypeVar("Content", bound=Section)
Result = TypeVar("Result")


@dataclass(frozen=True)
class StoredRecord(Generic[Content]):
    """A section under one key, which is changed by compare and set: no writer undoes another's.

    Args:
        store: Where it lies.
        key: Under which name.
        kind: What it holds.
        title: What messages call it, with its article.
        if_damaged: What to do about one that cannot be read.
    """

    store: ObjectStore
    key: str
    kind: type[Content]
    title: str
    if_damaged: str

    def read(self) -> Content | None:
        """Return the stored value; None before the first write.

        Raises:
            PerennialError: it is damaged, or of another version.
        """
        return self._parsed(self.store.read(self.key))

    def update(self, change: Callable[[Content | None], tuple[Content | None, Result]]) -> Result:
        """Change what is stored; where another writer was first, its content is changed again.

        Args:
            change: From what is stored to what is to be stored, and the result. It is called once
                per attempt. None, or an equal value, writes nothing.

        Raises:
            PerennialError: what is stored is damaged, or others never stop writing.
        """
        for _ in range(MAX_ATTEMPTS):
            previous = self.store.read(self.key)
            changed, result = change(self._parsed(previous))
            content = previous if changed is None else changed.to_json().encode()
            if content is None or content == previous:
                return result
            try:
                self.store.replace(self.key, content, previous=previous)
            except ConflictError:
                continue
            return result
        raise PerennialError(
            f"{self.title} could not be written",
            evidence=f"{self.store.uri}/{self.key}: another run wrote first in each of "
            f"{MAX_ATTEMPTS} attempts",
            action="look for runs that are started in a loop, then run this one again",
        )

    def _parsed(self, content: bytes | None) -> Content | None:
        if content is None:
            return None
        try:
            return self.kind.from_json(content)
        except ValueError as error:
            raise PerennialError(
                f"{self.title} cannot be read: it is damaged or of another version",
                evidence=f"{self.store.uri}/{self.key}: {error}",
                action=self.if_damaged,
            ) from error
