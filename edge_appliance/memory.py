"""The one owner of the sum of budgeted memory: who takes memory that grows with input takes it here first.

    reserve   before use        resize   when the true size is known        release   exactly once

What is let go while a query still reads it is *pinned*: it counts until the last reader is gone. Thread-safe.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from typing import Final, Literal

Account = Literal["open", "sealed", "set-asides", "group", "pinned"]

PINNED_SHARE: Final = 0.25
"""Of the limit: more than this pinned by queries while the buffer is full costs the oldest query its life."""


class Lease:
    """Held by whoever reads rows; the rows count as long as one of these is alive."""

    __slots__ = ("__weakref__",)


class Memory:
    """Sum of all reservations, by account, and the limits it is held against."""

    def __init__(self, limit_bytes: int) -> None:
        self.configured_bytes = limit_bytes
        """Reached: cool-down."""
        self.effective_bytes = limit_bytes
        """What the host allows at the moment: reached, rows are persisted early."""
        self._lock = threading.Lock()
        self._accounts: Counter[Account] = Counter()
        self._used_bytes = 0
        # A finalizer may run anywhere, also in the middle of a change of ours: it only appends.
        self._unpinned = deque[int]()

    @property
    def used_bytes(self) -> int:
        """All that is reserved now."""
        with self._lock:
            self._settle()
            return self._used_bytes

    def account_bytes(self, account: Account) -> int:
        """What is reserved for one purpose."""
        with self._lock:
            self._settle()
            return self._accounts[account]

    def reserve(self, account: Account, size_bytes: int) -> Reservation:
        """Take `size_bytes`, which may be 0 at first, for `account`."""
        self._change(account, size_bytes)
        return Reservation(self, account, size_bytes)

    def pin(self, lease: Lease, size_bytes: int) -> None:
        """Count `size_bytes` until the last holder of `lease` is gone; the caller must not hold on to it."""
        self._change("pinned", size_bytes)
        weakref.finalize(lease, self._unpinned.append, size_bytes).atexit = False

    def _change(self, account: Account, delta_bytes: int) -> None:
        with self._lock:
            self._settle()
            self._add(account, delta_bytes)

    def _settle(self) -> None:
        while self._unpinned:
            self._add("pinned", -self._unpinned.popleft())

    def _add(self, account: Account, delta_bytes: int) -> None:
        self._accounts[account] += delta_bytes
        self._used_bytes += delta_bytes
        if self._accounts[account] < 0:
            raise ValueError(f"memory account {account} would be {self._accounts[account]} bytes")


class Reservation:
    """Some bytes of one account. It belongs to one owner, who releases it once."""

    __slots__ = ("_account", "_memory", "size_bytes")

    def __init__(self, memory: Memory, account: Account, size_bytes: int) -> None:
        self._memory = memory
        self._account: Account | None = account
        self.size_bytes = size_bytes

    def resize(self, size_bytes: int) -> None:
        """Have `size_bytes` from now on."""
        account = self._live()
        self._memory._change(account, size_bytes - self.size_bytes)
        self.size_bytes = size_bytes

    def move(self, account: Account) -> None:
        """Be counted for another purpose."""
        before = self._live()
        self._memory._change(account, self.size_bytes)
        self._memory._change(before, -self.size_bytes)
        self._account = account

    def release(self) -> None:
        """Give everything back; a second time is a fault of ours and raises ValueError."""
        account = self._live()
        self._account = None
        self._memory._change(account, -self.size_bytes)
        self.size_bytes = 0

    def _live(self) -> Account:
        if self._account is None:
            raise ValueError("this memory was released already")
        return self._account
