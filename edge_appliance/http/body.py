"""Request bodies: read in full, inflated, and bounded while they are, in bytes and in time.

The server must be told not to inflate by itself (`auto_decompress=False`): a body inflated twice is a fault.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from aiohttp import web

from edge_appliance.core.delivery import Reason
from edge_appliance.http.answers import refuse
from edge_appliance.http.dependencies import HttpLimits

_LOOP_BYTES: Final = 64 * 1024
"""Inflated on the event loop at most, from as many; what is larger goes to a worker thread."""
_GZIP_WBITS: Final = 16 + zlib.MAX_WBITS
_MEMBERS_MAX: Final = 16
"""Each member costs a copy of what follows it; real clients send one."""
_FULL_RETRY_S: Final = 2


class Held:
    """Bytes of bodies in memory, of all requests together. Belongs to the event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.bytes = 0

    def share(self) -> HeldShare:
        """A new request's share, empty."""
        return HeldShare(self)


class HeldShare:
    """What one request holds; a context manager that gives it back."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self.bytes = 0

    def resize(self, size_bytes: int) -> bool:
        """Hold `size_bytes` from now on; False when that is beyond the limit of all requests."""
        total_bytes = self._held.bytes + size_bytes - self.bytes
        if size_bytes > self.bytes and total_bytes > self._held.limit_bytes:
            return False
        self._held.bytes = total_bytes
        self.bytes = size_bytes
        return True

    def __enter__(self) -> HeldShare:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.resize(0)


class Inflater:
    """One gzip body of one or more members, inflated in steps, never to more than `limit_bytes` + 1."""

    def __init__(self, data: bytes, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._member = zlib.decompressobj(_GZIP_WBITS)
        self._rest = data
        self._pieces: list[bytes] = []
        self._size_bytes = 0
        self._members = 1
        self.is_done = False

    @property
    def is_too_large(self) -> bool:
        """Whether the body inflates to more than its limit."""
        return self._size_bytes > self._limit_bytes

    def step(self, size_bytes: int) -> None:
        """Inflate about `size_bytes` more; raises ValueError when the data is not gzip or ends early."""
        goal_bytes = min(self._size_bytes + size_bytes, self._limit_bytes + 1)
        while not self.is_done and self._size_bytes < goal_bytes:
            try:
                piece = self._member.decompress(self._rest, goal_bytes - self._size_bytes)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            self._pieces.append(piece)
            self._size_bytes += len(piece)
            self._rest = self._member.unconsumed_tail
            if self._member.eof:
                self._next_member()
            elif not piece and not self._rest:
                raise ValueError("the data ends early")

    def finish(self) -> None:
        """Inflate all that is left."""
        self.step(self._limit_bytes + 1)

    def result(self) -> bytes:
        """The inflated body."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)

    def _next_member(self) -> None:
        # Some writers pad a gzip file with zero bytes.
        self._rest = self._member.unused_data.lstrip(b"\0")
        self._member = zlib.decompressobj(_GZIP_WBITS)
        self._members += 1
        self.is_done = not self._rest
        if not self.is_done and self._members > _MEMBERS_MAX:
            raise ValueError(f"more than {_MEMBERS_MAX} gzip members")


async def read_body(
    request: web.Request, limits: HttpLimits, share: HeldShare, workers: Executor
) -> bytes | web.Response:
    """The body as the client meant it, or the refusal. Raises what aiohttp raises when the client goes away."""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip"):
        return refuse(request, 415, "Content-Encoding can only be gzip or identity")
    if (request.content_length or 0) > limits.max_body_bytes:
        return _too_large(request, limits)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            sent = await _read_sent(request, limits, share)
    except TimeoutError:
        answer = refuse(request, 503, f"the body did not arrive within {limits.body_timeout_s:g} s", retry_after_s=1)
        answer.force_close()
        return answer
    if isinstance(sent, web.Response) or not sent or encoding in ("", "identity"):
        return sent
    return await _inflate(request, sent, limits, share, workers)


async def _read_sent(request: web.Request, limits: HttpLimits, share: HeldShare) -> bytes | web.Response:
    pieces: list[bytes] = []
    size_bytes = 0
    while piece := await request.content.readany():
        size_bytes += len(piece)
        if size_bytes > limits.max_body_bytes:
            return _too_large(request, limits)
        if not share.resize(size_bytes):
            return _no_room(request)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _inflate(
    request: web.Request, sent: bytes, limits: HttpLimits, share: HeldShare, workers: Executor
) -> bytes | web.Response:
    inflater = Inflater(sent, limits.max_body_bytes)
    try:
        if len(sent) <= _LOOP_BYTES:
            inflater.step(_LOOP_BYTES)
        if not inflater.is_done:
            # Uncounted while they inflate, but only as many at once as there are workers.
            await _in_worker(workers, inflater.finish)
    except ValueError as error:
        return refuse(request, 400, f"{Reason.BAD_COMPRESSION}: the body is not gzip: {error}")
    if inflater.is_too_large:
        return _too_large(request, limits)
    body = inflater.result()
    return body if share.resize(len(body)) else _no_room(request)


async def _in_worker(workers: Executor, job: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(workers, job)


def _too_large(request: web.Request, limits: HttpLimits) -> web.Response:
    return refuse(request, 413, f"the body is larger than {limits.max_body_bytes} bytes; send smaller batches")


def _no_room(request: web.Request) -> web.Response:
    return refuse(request, 503, "too many request bodies in memory", retry_after_s=_FULL_RETRY_S)
