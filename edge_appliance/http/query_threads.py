"""One thread for each query: nothing waits for it, neither a client beyond its time nor the end of the process.

The engine may be inside a step that cannot be interrupted for minutes. Threads of an executor are joined when the
interpreter exits, so one such query would hold up a stop for as long.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from edge_appliance import host

_Result = TypeVar("_Result")


def start_query(job: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """Run `job` in a thread of its own; the future may be left alone, whatever becomes of it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()
    # A failure that nobody waits for any more is not worth a word in the journal.
    outcome.add_done_callback(lambda done: done.cancelled() or done.exception())

    def settle(result: _Result | None, error: BaseException | None) -> None:
        if outcome.done():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast("_Result", result))

    def work() -> None:
        # The engine's threads, which the first query starts, take this over: scans must not hold up acknowledgements.
        host.step_back()
        result, failure = None, None
        try:
            result = job()
        except BaseException as error:  # whatever it is, it belongs to the one who asked
            failure = error
        try:
            loop.call_soon_threadsafe(settle, result, failure)
        except RuntimeError:
            return  # the loop has ended: nobody is left to be told

    threading.Thread(target=work, name="query", daemon=True).start()
    return outcome
