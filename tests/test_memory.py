"""The sum of budgeted memory: reserved before use, released exactly once, pinned as long as somebody reads."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from edge_appliance.memory import Lease, Memory, Reservation

ACCOUNTS = st.sampled_from(["open", "sealed", "set-asides", "group"])


def test_released_twice_is_a_fault():
    """Memory that is given back twice would be given out twice."""
    memory = Memory(100)
    reservation = memory.reserve("open", 10)
    reservation.release()
    for step in (reservation.release, lambda: reservation.resize(1), lambda: reservation.move("sealed")):
        with pytest.raises(ValueError, match="released already"):
            step()
    assert memory.used_bytes == 0


def test_no_account_goes_below_zero():
    """A size below nothing is a fault of ours, not a way to get room."""
    memory = Memory(100)
    with pytest.raises(ValueError, match="would be -1"):
        memory.reserve("open", -1)


def test_pinned_bytes_count_until_the_last_reader_is_gone():
    """Two queries hold a lease: the second one's end gives the memory back, without a call."""
    memory = Memory(100)
    lease = Lease()
    readers = [lease, lease]
    memory.pin(lease, 40)
    del lease
    assert memory.account_bytes("pinned") == 40
    readers.pop()
    assert memory.used_bytes == 40
    readers.pop()
    assert memory.used_bytes == 0


def test_lease_without_a_reader_pins_nothing():
    """What nobody reads is gone at once."""
    memory = Memory(100)
    memory.pin(Lease(), 40)
    assert memory.used_bytes == 0


class MemoryMachine(RuleBasedStateMachine):
    """Any order of reserving, resizing, moving, releasing, pinning and reading."""

    live: Bundle[Reservation] = Bundle("live")
    leases: Bundle[list] = Bundle("leases")

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(2**20)
        self.expected: dict[int, int] = {}
        self.pinned = 0

    @rule(target=live, account=ACCOUNTS, size=st.integers(0, 1000))
    def reserve(self, account, size):
        reservation = self.memory.reserve(account, size)
        self.expected[id(reservation)] = size
        return reservation

    @rule(reservation=live, size=st.integers(0, 1000))
    def resize(self, reservation, size):
        reservation.resize(size)
        self.expected[id(reservation)] = size

    @rule(reservation=live, account=ACCOUNTS)
    def move(self, reservation, account):
        reservation.move(account)

    @rule(reservation=consumes(live))
    def release(self, reservation):
        del self.expected[id(reservation)]
        reservation.release()

    @rule(target=leases, size=st.integers(0, 1000))
    def pin(self, size):
        lease = Lease()
        self.memory.pin(lease, size)
        self.pinned += size
        return [lease, size]

    @rule(held=consumes(leases))
    def stop_reading(self, held):
        held[0] = None
        self.pinned -= held[1]

    @invariant()
    def sums_are_right(self):
        assert self.memory.used_bytes == sum(self.expected.values()) + self.pinned
        assert self.memory.account_bytes("pinned") == self.pinned
        accounts = ("open", "sealed", "set-asides", "group", "pinned")
        assert sum(self.memory.account_bytes(account) for account in accounts) == self.memory.used_bytes

    def teardown(self):
        """What is not released by then is still counted, and nothing else."""
        assert self.memory.used_bytes == sum(self.expected.values()) + self.pinned


TestMemoryMachine = MemoryMachine.TestCase
TestMemoryMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
