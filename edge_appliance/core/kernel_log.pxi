# The GROUP payload of the log, written while the group is appended: `wal_record` draws it.

cdef uint32_t CRC_OF_BYTE[256]
cdef uint32_t _crc
for _byte in range(256):
    _crc = _byte
    for _bit in range(8):
        _crc = (_crc >> 1) ^ (0xEDB88320U if _crc & 1 else 0)
    CRC_OF_BYTE[<int>_byte] = _crc


cdef inline uint32_t crc_of_time(uint32_t crc, int64_t time_ns) noexcept nogil:
    """Go on with the CRC-32 of zlib over the 8 bytes of a time; begins and ends with the complement."""
    cdef int byte
    cdef uint64_t bits = <uint64_t>time_ns
    for byte in range(8):
        crc = CRC_OF_BYTE[(crc ^ <uint32_t>bits) & 0xFF] ^ (crc >> 8)
        bits >>= 8
    return crc


cdef struct Piece:
    char* bytes
    size_t used
    size_t room

cdef enum PieceOf:
    # In the order of the payload.
    ARRIVALS
    FLAGS
    CONTEXTS
    CRCS
    COUNTS
    PACKET_IDS
    DIGESTS
    LENGTHS
    TEXT
    PIECES

cdef enum:
    FIRST_PIECE_BYTES = 4096
    KEPT_PIECE_BYTES = 4 << 20  # what a piece may keep from one group to the next
    FLAG_CLOCK_UNSET = 1
    FLAG_HAS_KEY = 2


cdef class GroupLog:
    """One payload in the making; a delivery is added line by line, and ends or is taken back as a whole."""

    cdef Piece pieces[9]
    cdef uint32_t entries
    cdef uint32_t keys
    cdef uint32_t lines
    cdef uint32_t lines_before  # the delivery in work

    def __dealloc__(self):
        for number in range(<int>PIECES):
            PyMem_RawFree(self.pieces[<int>number].bytes)

    cdef void begin(self) noexcept:
        cdef int number
        for number in range(<int>PIECES):
            if self.pieces[number].room > KEPT_PIECE_BYTES:
                PyMem_RawFree(self.pieces[number].bytes)
                self.pieces[number].bytes = NULL
                self.pieces[number].room = 0
            self.pieces[number].used = 0
        self.entries = self.keys = self.lines = self.lines_before = 0

    cdef inline int _add(self, PieceOf piece_of, const void* data, size_t size_bytes) except -1:
        cdef Piece* piece = &self.pieces[<int>piece_of]
        if piece.used + size_bytes > piece.room:
            self._grow(piece, size_bytes)
        memcpy(piece.bytes + piece.used, data, size_bytes)
        piece.used += size_bytes

    cdef int _grow(self, Piece* piece, size_t size_bytes) except -1:
        cdef size_t room = max(<size_t>FIRST_PIECE_BYTES, 2 * piece.room) + size_bytes
        cdef char* grown = <char*>PyMem_RawRealloc(piece.bytes, room)
        if grown == NULL:
            raise MemoryError
        piece.bytes = grown
        piece.room = room

    cdef inline int add_line(self, const char* line, uint32_t length) except -1:
        self._add(LENGTHS, &length, 4)
        self._add(TEXT, line, length)
        self.lines += 1

    cdef int end_delivery(
        self, int64_t arrival_ns, bint clock_unset, uint32_t context, uint32_t crc, object key
    ) except -1:
        """Close the entry of the lines added since the last one; nothing when there are none."""
        cdef uint32_t count = self.lines - self.lines_before
        cdef uint8_t flags = FLAG_CLOCK_UNSET if clock_unset else 0
        cdef uint16_t packet_id
        cdef bytes digest
        if not count:
            return 0
        if key is not None:
            flags |= FLAG_HAS_KEY
            packet_id = key[0]
            digest = key[1]
            if len(digest) != DIGEST_BYTES:
                raise ValueError(f"a delivery key's digest is not {DIGEST_BYTES} bytes long")
            self._add(PACKET_IDS, &packet_id, 2)
            self._add(DIGESTS, <const char*>digest, len(digest))
            self.keys += 1
        self._add(ARRIVALS, &arrival_ns, 8)
        self._add(FLAGS, &flags, 1)
        self._add(CONTEXTS, &context, 4)
        self._add(CRCS, &crc, 4)
        self._add(COUNTS, &count, 4)
        self.entries += 1
        self.lines_before = self.lines
        return 0

    cdef bytes payload(self, list definitions, list contexts):
        """The payload, or nothing when no line was accepted."""
        cdef bytes head
        cdef bytes whole
        cdef size_t size_bytes
        cdef char* at
        cdef int number
        if not self.entries:
            return b""
        head = encode_group_head(PARSER_VERSION, definitions, contexts, self.entries, self.keys, self.lines)
        size_bytes = len(head)
        for number in range(<int>PIECES):
            size_bytes += self.pieces[number].used
        whole = PyBytes_FromStringAndSize(NULL, size_bytes)
        at = whole
        memcpy(at, <const char*>head, len(head))
        at += len(head)
        for number in range(<int>PIECES):
            if self.pieces[number].used:
                memcpy(at, self.pieces[number].bytes, self.pieces[number].used)
                at += self.pieces[number].used
        return whole
