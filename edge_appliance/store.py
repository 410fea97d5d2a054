"""Object storage, by obstore.

Its rules. A put never overwrites. A put whose answer is missing is *unknown*, not failed: the object is looked at and
compared. Every request has a time limit that follows its size, and ends when the store is closed. Errors name the
store, what it said in words, and where the credentials came from, never what they are.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from edge_appliance.config_store import StoreSection
from edge_appliance.core.store_reason import reason_of
from edge_appliance.errors import StoreError
from edge_appliance.store_client import LONGEST_S, Clients, CredentialsError
from edge_appliance.store_directory import DirectoryStore
from edge_appliance.store_port import Store, StoredObject

T = TypeVar("T")

SLOWEST_BYTES_S: Final = 64 * 1024
"""Of the slowest link that parts are sent over: a larger body has that much more time."""
_DIGEST: Final = "edgesha256"
"""Metadata of our objects. A name that every provider and proxy takes: letters and digits."""
_MD5: Final = re.compile(r"[0-9a-f]{32}")
_CHUNK_BYTES: Final = 4 * 2**20


def open_store(settings: StoreSection) -> Store:
    """The store that the configuration names; no network is touched."""
    if settings.directory is not None:
        return DirectoryStore(settings.directory)
    return ObjectStore(settings)


class ObjectStore:
    """A bucket, or what is below a prefix in it."""

    directory: None = None

    def __init__(self, settings: StoreSection) -> None:
        self._settings = settings
        self.name = str(settings.url)
        where = f" at {settings.endpoint}" if settings.endpoint else ""
        self._described = f"{self.name}{where} (credentials: {settings.credentials_source})"
        self.is_conditional: bool | None = None
        self._clients = Clients(settings)
        self._lock = threading.Lock()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="store", daemon=True)
        self._thread.start()

    # Store

    def put(self, source: Path, key: str, *, is_repeat: bool = False) -> bool:
        """See `Store.put`. The file is in memory as a whole: a conditional put is a single request."""
        try:
            data = source.read_bytes()
        except OSError as error:
            raise StoreError("put", key, f"{source}: {error.strerror}") from error
        digest = hashlib.sha256(data).hexdigest()
        if (is_repeat or not self.is_conditional) and (known := self._look_first(key, data, digest)) is not None:
            return known
        try:
            if self._create(key, data, {_DIGEST: digest}):
                return True
        except StoreError:
            # Unknown: the answer may be all that was lost.
            found = self._look(key, data, digest)
            if found is None:
                raise
            return found
        found = self._is_same(key, data, digest)
        if found is None:
            raise self._error("put", key, "the name is said to be taken, and there is no such object")
        return found

    def create(self, key: str, data: bytes) -> bool:
        """See `Store.create`."""
        return self._create(key, data, {})

    def _create(self, key: str, data: bytes, attributes: dict[str, str]) -> bool:
        mode: Literal["create", "overwrite"] = "overwrite" if self.is_conditional is False else "create"

        async def put(client: Any) -> bool:
            try:
                await obstore.put_async(
                    client, key, data, mode=mode, use_multipart=False, attributes=attributes or None
                )
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        return self._ask("put", key, put, self._limit_s(len(data)))

    def write(self, key: str, data: bytes) -> None:
        """See `Store.write`."""
        self._ask(
            "write",
            key,
            lambda client: obstore.put_async(client, key, data, use_multipart=False),
            self._limit_s(len(data)),
        )

    def read(self, key: str, start: int, size_bytes: int) -> bytes:
        """See `Store.read`."""
        return self._ask(
            "read",
            key,
            lambda client: obstore.get_range_async(client, key, start=start, length=size_bytes),
            self._limit_s(size_bytes),
            bytes,
        )

    def stat(self, key: str) -> StoredObject | None:
        """See `Store.stat`."""

        async def head(client: Any) -> StoredObject | None:
            try:
                return _object(await obstore.head_async(client, key))
            except FileNotFoundError:
                return None

        return self._ask("stat", key, head, self._limit_s())

    def fetch(self, key: str, target: Path, size_bytes: int, timeout_s: float) -> None:
        """See `Store.fetch`."""

        async def get(client: Any) -> None:
            answer = await obstore.get_async(client, key)
            with target.open("wb") as file:
                async for chunk in answer.stream(min_chunk_size=_CHUNK_BYTES):
                    file.write(chunk)

        self._ask("fetch", key, get, min(timeout_s, self._limit_s(size_bytes)))

    def delete(self, key: str) -> None:
        """See `Store.delete`."""

        async def delete(client: Any) -> None:
            with suppress(FileNotFoundError):
                await obstore.delete_async(client, key)

        self._ask("delete", key, delete, self._limit_s())

    def objects(self, prefix: str) -> list[StoredObject]:
        """See `Store.objects`. Each page has the time of one request."""

        async def collect(client: Any) -> list[StoredObject]:
            found: list[StoredObject] = []
            pages = aiter(obstore.list(client, prefix or None, chunk_size=1_000))
            while True:
                async with asyncio.timeout(self._limit_s()):
                    page = await anext(pages, None)
                if page is None:
                    return found
                found += map(_object, page)

        return self._ask("list", prefix, collect, LONGEST_S)

    def close(self) -> None:
        """See `Store.close`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Was it stored?

    def _look_first(self, key: str, data: bytes, digest: str) -> bool | None:
        """Like `_is_same`, but a refusal counts as absent: the answer to a put has more to say about it."""
        try:
            return self._is_same(key, data, digest)
        except StoreError as error:
            if isinstance(error.__cause__, PermissionDeniedError | UnauthenticatedError):
                return None
            raise

    def _look(self, key: str, data: bytes, digest: str) -> bool | None:
        """Whether the object is there after a put without an answer; None when that cannot be told."""
        try:
            return self._is_same(key, data, digest)
        except StoreError:
            return None

    def _is_same(self, key: str, data: bytes, digest: str) -> bool | None:
        """Whether the object `key` has this content; None when there is no such object."""

        async def head(client: Any) -> tuple[StoredObject, str, dict[str, str]] | None:
            try:
                answer = await obstore.get_async(client, key, options={"head": True})
            except FileNotFoundError:
                return None
            return _object(answer.meta), answer.meta["e_tag"] or "", dict(answer.attributes)

        found: tuple[StoredObject, str, dict[str, str]] | None = self._ask("stat", key, head, self._limit_s())
        if found is None:
            return None
        stored, tag, attributes = found
        if stored.size_bytes != len(data):
            return False
        if _DIGEST in attributes:
            return attributes[_DIGEST] == digest
        if _MD5.fullmatch(tag.strip('"')):
            return tag.strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest()
        return hashlib.sha256(self.read(key, 0, len(data))).hexdigest() == digest

    # Asking

    def _limit_s(self, size_bytes: int = 0) -> float:
        return self._settings.timeout_s + size_bytes / SLOWEST_BYTES_S

    def _ask(
        self,
        operation: str,
        key: str,
        request: Callable[[Any], Awaitable[Any]],
        limit_s: float,
        result: Callable[[Any], T] = lambda answer: answer,
    ) -> T:
        """Run one request on the store's loop and wait for it; every error becomes a StoreError."""

        async def limited() -> Any:
            async with asyncio.timeout(limit_s):
                return await request(client)

        with self._lock:
            if self._is_closed:
                raise StoreError(operation, key, "the appliance is stopping")
            try:
                client = self._clients.current()
            except CredentialsError as error:
                raise self._error(operation, key, str(error)) from error
            future = asyncio.run_coroutine_threadsafe(limited(), self._loop)
        try:
            return result(future.result())
        except (CancelledError, asyncio.CancelledError) as error:
            raise StoreError(operation, key, "the appliance is stopping") from error
        except TimeoutError as error:
            raise self._error(operation, key, f"there is no answer within {limit_s:.0f} s") from error
        except Exception as error:  # obstore raises its own classes and built-in ones alike
            raise self._error(operation, key, reason_of(str(error))) from error

    def _error(self, operation: str, key: str, reason: str) -> StoreError:
        return StoreError(operation, key, f"{reason}: {self._described}")


def _object(meta: Any) -> StoredObject:
    return StoredObject(meta["path"], meta["size"], meta["last_modified"].timestamp())
