"""A store in a local or mounted directory (`file://`): its objects are files, and a put is a hard link."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from edge_appliance import durable
from edge_appliance.errors import DiskError, PathError, StoreError
from edge_appliance.store_port import StoredObject

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


class DirectoryStore:
    """The store below one directory. What it confirms is synced, with its directory."""

    def __init__(self, root: Path) -> None:
        self.directory: Path = root
        self.name = root.as_uri()
        self.is_conditional: bool | None = True

    def path(self, key: str) -> Path:
        """Where the object `key` is, or would be."""
        return self.directory / key

    def put(self, source: Path, key: str, *, is_repeat: bool = False) -> bool:
        """Link, or copy where links do not reach; see `Store.put`."""
        final = self.path(key)
        try:
            durable.make_directory(final.parent)
            durable.link_or_copy(source, final)
        except DiskError as error:
            if error.errno == errno.EEXIST:
                return False
            raise StoreError("put", key, str(error)) from error
        except PathError as error:
            raise StoreError("put", key, str(error)) from error
        return True

    def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`."""
        final = self.path(key)
        with _translated("create", key):
            durable.make_directory(final.parent)
            temporary = self._written(final, data)
            try:
                final.hardlink_to(temporary)
            except FileExistsError:
                return False
            finally:
                temporary.unlink()
            durable.sync_directory(final.parent)
        return True

    def write(self, key: str, data: bytes) -> None:
        """See `Store.write`."""
        final = self.path(key)
        with _translated("write", key):
            durable.make_directory(final.parent)
            durable.publish(self._written(final, data), final)

    def read(self, key: str, start: int, size_bytes: int) -> bytes:
        """See `Store.read`."""
        with _translated("read", key), self.path(key).open("rb") as file:
            file.seek(start)
            return file.read(size_bytes)

    def stat(self, key: str) -> StoredObject | None:
        """See `Store.stat`."""
        try:
            stat = self.path(key).stat()
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise StoreError("stat", key, error.strerror or str(error)) from error
        return StoredObject(key, stat.st_size, stat.st_mtime)

    def fetch(self, key: str, target: Path, size_bytes: int, timeout_s: float) -> None:
        """See `Store.fetch`."""
        with _translated("fetch", key):
            target.write_bytes(self.path(key).read_bytes())

    def delete(self, key: str) -> None:
        """See `Store.delete`."""
        with _translated("delete", key):
            try:
                durable.remove(self.path(key))
            except DiskError as error:
                if error.errno not in _ABSENT:
                    raise

    def objects(self, prefix: str) -> list[StoredObject]:
        """See `Store.objects`."""
        found = []
        with _translated("list", prefix):
            for path in self.path(prefix).rglob("*"):
                if path.is_file() and not path.name.endswith(durable.TEMPORARY_SUFFIX):
                    stat = path.stat()
                    found.append(StoredObject(path.relative_to(self.directory).as_posix(), stat.st_size, stat.st_mtime))
        return found

    def close(self) -> None:
        """Nothing is in flight: a put has ended when it returns."""

    def _written(self, final: Path, data: bytes) -> Path:
        # Its own name: two may write the same object at once.
        temporary = final.with_name(f"{final.name}.{secrets.token_hex(4)}{durable.TEMPORARY_SUFFIX}")
        temporary.write_bytes(data)
        durable.sync_file(temporary)
        return temporary


@contextmanager
def _translated(operation: str, key: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(operation, key, error.strerror or str(error)) from error
    except (DiskError, PathError) as error:
        raise StoreError(operation, key, str(error)) from error
