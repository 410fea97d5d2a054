# Names to numbers, by their raw bytes: the heads of known series, and the columns of a tail.
#
# Open addressing over slots of 8 bytes; a slot names an entry in one growing arena, where the key's bytes lie behind
# the entry: two cache lines a look-up. The hash is the interpreter's own for bytes, which is keyed at random, so
# nobody can choose names that collide.

cdef struct Entry:
    PyObject* value         # owned
    void* writer            # of the value's table, which the value keeps alive
    uint32_t number
    uint32_t collisions     # of a head: its tags that beat one of the route
    size_t key_bytes        # they follow

cdef struct Slot:
    uint32_t tag            # of the hash
    uint32_t place          # of the entry in the arena, in units of 8 bytes from 1; 0 when free

cdef enum:
    FIRST_SLOTS = 8
    FIRST_ARENA_BYTES = 512

cdef hashfunc_of_bytes hash_bytes = PyHash_GetFuncDef().hash


@cython.final
cdef class Index:
    """A mapping from bytes to an object and a number. Freed only whole, but for what was added last."""

    cdef Slot* slots
    cdef size_t slot_count
    cdef char* arena
    cdef size_t arena_bytes
    cdef size_t used_bytes
    cdef Py_ssize_t count

    def __cinit__(self):
        self._allocate()

    def __dealloc__(self):
        self._release()

    cdef int _allocate(self) except -1:
        self.slots = <Slot*>PyMem_RawCalloc(FIRST_SLOTS, sizeof(Slot))
        self.arena = <char*>PyMem_RawMalloc(FIRST_ARENA_BYTES)
        if self.slots == NULL or self.arena == NULL:
            raise MemoryError
        self.slot_count = FIRST_SLOTS
        self.arena_bytes = FIRST_ARENA_BYTES
        self.used_bytes = 8     # no entry lies at place 0
        self.count = 0

    cdef void _release(self):
        cdef size_t at = 8
        cdef Entry* entry
        while self.arena != NULL and at < self.used_bytes:
            entry = <Entry*>(self.arena + at)
            at += entry_bytes(entry.key_bytes)
            Py_CLEAR(entry.value)
        PyMem_RawFree(self.slots)
        PyMem_RawFree(self.arena)
        self.slots = NULL
        self.arena = NULL

    def clear(self):
        """Forget all keys and let go of their values."""
        cdef Index old = Index.__new__(Index)
        self.slots, old.slots = old.slots, self.slots
        self.slot_count, old.slot_count = old.slot_count, self.slot_count
        self.arena, old.arena = old.arena, self.arena
        self.arena_bytes, old.arena_bytes = old.arena_bytes, self.arena_bytes
        self.used_bytes, old.used_bytes = old.used_bytes, self.used_bytes
        self.count = 0

    def __len__(self):
        return self.count

    @property
    def size_bytes(self):
        """Memory it holds, beside its values."""
        return self.arena_bytes + self.slot_count * sizeof(Slot)

    def get(self, bytes key):
        """The value of a key, or None."""
        cdef Entry* entry = self.find(key, len(key))
        return <object>entry.value if entry != NULL and entry.value != NULL else None

    def __setitem__(self, bytes key, value):
        self.put(key, len(key), value)

    def __delitem__(self, bytes key):
        cdef size_t slot = self._slot_of(key, len(key), hash_bytes(<const char*>key, len(key)))
        cdef Entry* entry
        cdef size_t place = self.slots[slot].place
        if place == 0:
            raise KeyError(key)
        self._close_gap(slot)
        self.count -= 1
        entry = <Entry*>(self.arena + place * 8)
        Py_CLEAR(entry.value)
        if place * 8 + entry_bytes(entry.key_bytes) == self.used_bytes:
            self.used_bytes = place * 8

    cdef inline Entry* find(self, const char* key, Py_ssize_t key_bytes) noexcept:
        """The entry of a key, or NULL; good until the next `put`."""
        return self.find_hashed(key, key_bytes, hash_bytes(key, key_bytes))

    cdef inline void fetch_slot(self, Py_hash_t hashed) noexcept:
        """Begin to bring a key's slot into the cache: with many series, memory is what a line waits for."""
        prefetch(&self.slots[<size_t>hashed & (self.slot_count - 1)])

    cdef inline void fetch(self, Py_hash_t hashed) noexcept:
        """The same for its entry, once the slot is there."""
        prefetch(self.arena + <size_t>self.slots[<size_t>hashed & (self.slot_count - 1)].place * 8)

    cdef inline Entry* find_hashed(self, const char* key, Py_ssize_t key_bytes, Py_hash_t hashed) noexcept:
        cdef size_t place = self.slots[self._slot_of(key, key_bytes, hashed)].place
        return NULL if place == 0 else <Entry*>(self.arena + place * 8)

    cdef inline size_t _slot_of(self, const char* key, Py_ssize_t key_bytes, Py_hash_t hashed) noexcept:
        """The slot that holds a key, or the free one where it would go."""
        cdef size_t mask = self.slot_count - 1
        cdef size_t slot = <size_t>hashed & mask
        cdef uint32_t tag = <uint32_t>(<uint64_t>hashed >> 32)
        cdef Entry* entry
        while self.slots[slot].place:
            if self.slots[slot].tag == tag:
                entry = <Entry*>(self.arena + <size_t>self.slots[slot].place * 8)
                if entry.key_bytes == key_bytes and not memcmp(<char*>entry + sizeof(Entry), key, key_bytes):
                    return slot
            slot = (slot + 1) & mask
        return slot

    cdef Entry* put(self, const char* key, Py_ssize_t key_bytes, object value) except NULL:
        """Add a key, or give it another value."""
        cdef Entry* entry = self.find(key, key_bytes)
        cdef PyObject* old
        if entry != NULL:
            old = entry.value
            Py_INCREF(value)
            entry.value = <PyObject*>value
            Py_XDECREF(old)
            return entry
        return self._add(key, key_bytes, value)

    cdef Entry* _add(self, const char* key, Py_ssize_t key_bytes, object value) except NULL:
        cdef size_t wanted_bytes = entry_bytes(key_bytes)
        cdef Py_hash_t hashed = hash_bytes(key, key_bytes)
        cdef size_t slot
        cdef Entry* entry
        if 3 * <size_t>(self.count + 1) > 2 * self.slot_count:
            self._grow_slots()
        if self.used_bytes + wanted_bytes > self.arena_bytes:
            self._grow_arena(wanted_bytes)
        slot = self._slot_of(key, key_bytes, hashed)
        self.slots[slot].tag = <uint32_t>(<uint64_t>hashed >> 32)
        self.slots[slot].place = <uint32_t>(self.used_bytes // 8)
        entry = <Entry*>(self.arena + self.used_bytes)
        Py_INCREF(value)
        entry.value = <PyObject*>value
        entry.writer = NULL
        entry.number = 0
        entry.collisions = 0
        entry.key_bytes = key_bytes
        memcpy(<char*>entry + sizeof(Entry), key, key_bytes)
        self.used_bytes += wanted_bytes
        self.count += 1
        return entry

    cdef int _grow_arena(self, size_t wanted_bytes) except -1:
        cdef size_t size_bytes = self.arena_bytes + self.arena_bytes // 2 + wanted_bytes
        if size_bytes // 8 > UINT32_MAX:
            raise MemoryError
        cdef char* arena = <char*>PyMem_RawRealloc(self.arena, size_bytes)
        if arena == NULL:
            raise MemoryError
        self.arena = arena
        self.arena_bytes = size_bytes

    cdef int _grow_slots(self) except -1:
        cdef size_t count = self.slot_count * 2
        cdef size_t at
        cdef size_t slot
        cdef Entry* entry
        cdef Slot* old = self.slots
        cdef Slot* slots = <Slot*>PyMem_RawCalloc(count, sizeof(Slot))
        if slots == NULL:
            raise MemoryError
        for at in range(self.slot_count):
            if old[at].place:
                entry = <Entry*>(self.arena + <size_t>old[at].place * 8)
                slot = <size_t>hash_bytes(<char*>entry + sizeof(Entry), entry.key_bytes) & (count - 1)
                while slots[slot].place:
                    slot = (slot + 1) & (count - 1)
                slots[slot] = old[at]
        self.slots = slots
        self.slot_count = count
        PyMem_RawFree(old)

    cdef void _close_gap(self, size_t gap) noexcept:
        """Free a slot, and move up what would not be found behind a free one."""
        cdef size_t mask = self.slot_count - 1
        cdef size_t slot = gap
        cdef size_t home
        cdef Entry* entry
        while True:
            slot = (slot + 1) & mask
            if self.slots[slot].place == 0:
                break
            entry = <Entry*>(self.arena + <size_t>self.slots[slot].place * 8)
            home = <size_t>hash_bytes(<char*>entry + sizeof(Entry), entry.key_bytes) & mask
            if ((slot - home) & mask) >= ((slot - gap) & mask):
                self.slots[gap] = self.slots[slot]
                gap = slot
        self.slots[gap].place = 0


cdef inline size_t entry_bytes(size_t key_bytes) noexcept nogil:
    """Of an entry with its key, up to the next multiple of 8."""
    return (sizeof(Entry) + key_bytes + 7) & ~<size_t>7
