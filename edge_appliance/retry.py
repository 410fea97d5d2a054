"""Sends rejected lines again, once a new route or release may take them, and throws letters away: both when asked to.

A letter goes when its line is in the log, or was rejected once more, which writes a letter of its own. One that cannot
be sent stays. A crash in between leaves letters of lines that are stored: sent again, those with a time change nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from edge_appliance.core.delivery import ArrivalClock, Delivery, DeliveryResult, Reason
from edge_appliance.core.line_split import SAMPLE_BYTES
from edge_appliance.core.route import RouteTable
from edge_appliance.dead_letters import DeadLetters, read_file
from edge_appliance.inbox import Inbox

OUTCOMES: Final = {
    "stored": "stored",
    "rejected": "rejected again, with a letter of their own",
    "cut": "not sent: the letter holds only the beginning of the line",
    "no_line": "not sent: the letter holds no line",
    "no_topic": "not sent: they came over HTTP, and the letter does not say for which database; the client was told",
    "no_route": "not sent: no route matches the topic",
    "not_taken": "not sent: the appliance takes no lines now, try again later",
}
"""What becomes of a letter, in words. Those of the first two are gone, the others stay."""

_GONE: Final = ("stored", "rejected")
_WHOLE_BYTES: Final = SAMPLE_BYTES - 4
"""A longer sample may have been cut: cutting takes away up to three bytes of a character more."""
_BATCH: Final = 256
"""Letters sent together: few enough to wait for, enough for one sync to cover many."""
_TAKEN_WITHIN_S: Final = 10.0


class Retry:
    """The letters' way back. All methods are for the event loop's thread; one request is served at a time."""

    def __init__(
        self, letters: DeadLetters, inbox: Inbox, clock: ArrivalClock, routes: Callable[[], RouteTable]
    ) -> None:
        """`routes` gives those in effect now."""
        self._letters = letters
        self._inbox = inbox
        self._clock = clock
        self._routes = routes
        self._busy = asyncio.Lock()

    async def retry(self) -> dict[str, int]:
        """Send every letter that holds its whole line; returns how many letters had which of OUTCOMES."""
        async with self._busy:
            routes, counts = self._routes(), Counter[str]()
            for path in await asyncio.to_thread(self._letters.seal):
                counts.update(await self._retry_file(path, routes))
            return {outcome: counts[outcome] for outcome in OUTCOMES}

    async def purge(self) -> int:
        """Throw all letters away that are there now; returns how many."""
        async with self._busy:
            return await asyncio.to_thread(self._letters.purge)

    async def _retry_file(self, path: Path, routes: RouteTable) -> list[str]:
        letters = await asyncio.to_thread(read_file, path)
        outcomes: list[str] = []
        for start in range(0, len(letters), _BATCH):
            outcomes += await self._send(letters[start : start + _BATCH], routes)
        kept = [letter for letter, outcome in zip(letters, outcomes, strict=True) if outcome not in _GONE]
        if len(kept) < len(letters):
            await asyncio.to_thread(self._letters.replace, path, kept)
        return outcomes

    async def _send(self, letters: Sequence[Mapping[str, Any]], routes: RouteTable) -> list[str]:
        """Send a batch, and wait until the log has each line of it, or it has been refused or taken back."""
        asked = [self._delivery(letter, routes) for letter in letters]
        if self._inbox.is_full:
            return [each if isinstance(each, str) else "not_taken" for each in asked]
        sent = {each: _expect(each) for each in asked if isinstance(each, Delivery)}
        if sent:
            self._inbox.put(list(sent))
            await asyncio.wait(sent.values(), timeout=_TAKEN_WITHIN_S)
        for delivery, done in sent.items():
            # Never one that was taken: its row will be there, and a letter beside it would double it.
            if not done.done() and self._inbox.withdraw(delivery):
                done.set_result(DeliveryResult(0, refused="not taken in time"))
        return [each if isinstance(each, str) else _outcome(await sent[each]) for each in asked]

    def _delivery(self, letter: Mapping[str, Any], routes: RouteTable) -> Delivery | str:
        """What a letter is sent as, or the outcome that keeps it from being sent."""
        line = _line(letter)
        if isinstance(line, str):
            return line
        origin = routes.match(str(letter.get("topic")))
        if origin is None:
            return "no_route"
        arrival_ns, clock_unset = self._clock.stamp(time.time_ns())
        return Delivery(origin, line, arrival_ns, clock_unset=clock_unset)


def _line(letter: Mapping[str, Any]) -> bytes | str:
    """The whole line of a letter, or the outcome when it has none."""
    try:
        sample = base64.b64decode(str(letter.get("sample", "")), validate=True)
    except binascii.Error:
        return "no_line"
    if letter.get("source") != "mqtt":
        return "no_topic"
    if not sample:
        return "no_line"
    reason = letter.get("reason")
    if reason == Reason.PAYLOAD_TOO_LARGE:
        return "cut"
    if reason == Reason.INVALID_UTF8 and letter.get("line") == 0:  # the topic's, which is shown with escapes
        return "no_route"
    # What brings out a fault of ours is kept as a whole.
    return sample if reason == Reason.INTERNAL_ERROR or len(sample) <= _WHOLE_BYTES else "cut"


def _expect(delivery: Delivery) -> asyncio.Future[DeliveryResult]:
    done: asyncio.Future[DeliveryResult] = asyncio.get_running_loop().create_future()

    def resolve(result: DeliveryResult) -> None:
        if not done.done():
            done.set_result(result)

    delivery.on_done = resolve
    return done


def _outcome(result: DeliveryResult) -> str:
    if result.refused:
        return "not_taken"
    return "rejected" if result.errors else "stored"
