"""What every store offers, be it a directory or object storage.

Names in the store never repeat, so sending a part twice is harmless. Every method may be called from any thread,
blocks no longer than the store's time limits, and raises StoreError with the reason in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object in a store."""

    key: str
    size_bytes: int
    modified_s: float
    """By the store's clock, seconds since 1970."""


class Store(Protocol):
    """Where parts go in the end."""

    is_conditional: bool | None
    """Whether it refuses to create an object a second time; None: nobody has tried. A probe finds out."""

    @property
    def name(self) -> str:
        """The store's URL, for messages."""

    @property
    def directory(self) -> Path | None:
        """Where its objects are files on this host; None elsewhere."""

    def put(self, source: Path, key: str, *, is_repeat: bool = False) -> bool:
        """Store the durable file `source` as `key`, create-only; False when another content has that name.

        `is_repeat`: it may be there already, so that a look is worth more than sending it again.
        The same content under that name is success: it is what a crash behind an earlier put leaves. An error says
        that the object is not there, as far as can be known.
        """

    def create(self, key: str, data: bytes) -> bool:
        """Store a small object, create-only; False when the name is taken."""

    def write(self, key: str, data: bytes) -> None:
        """Store a small object in place of any other of that name."""

    def read(self, key: str, start: int, size_bytes: int) -> bytes:
        """Bytes of an object, fewer when it ends before."""

    def stat(self, key: str) -> StoredObject | None:
        """The object `key`; None when there is none."""

    def fetch(self, key: str, target: Path, size_bytes: int, timeout_s: float) -> None:
        """Copy an object of about this size to the new file `target`, which is not synced yet.

        It takes no longer than `timeout_s`, nor than the store's own limit for this size.
        """

    def delete(self, key: str) -> None:
        """Delete an object; a missing one is fine."""

    def objects(self, prefix: str) -> list[StoredObject]:
        """All objects whose key begins with the path `prefix`, in no order; empty: all of them."""

    def close(self) -> None:
        """End what is in flight, with StoreError; a second call does nothing."""
