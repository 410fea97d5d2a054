# The GROUP payload of the log, written while the group is appended: `wal_record` draws it.

cdef uint32_t CRC_TABLES[8][256]    # of a byte that stands so many bytes before the last one
cdef uint32_t _crc
cdef int _byte
cdef int _table
for _byte in range(256):
    _crc = _byte
    for _table in range(8):
        for _bit in range(8):
            _crc = (_crc >> 1) ^ (0xEDB88320U if _crc & 1 else 0)
        CRC_TABLES[_table][_byte] = _crc


cdef inline uint32_t crc_of_time(uint32_t crc, int64_t time_ns) noexcept nogil:
    """Go on with the CRC-32 of zlib over the 8 bytes of a time; begins and ends with the complement.

    All eight at once: slicing by 8 (Kounavis and Berry, A systematic approach to building high performance,
    software-based, CRC generators, ISCC 2005).
    """
    cdef uint64_t bits = <uint64_t>time_ns ^ crc
    return (
        CRC_TABLES[7][bits & 0xFF]
        ^ CRC_TABLES[6][bits >> 8 & 0xFF]
        ^ CRC_TABLES[5][bits >> 16 & 0xFF]
        ^ CRC_TABLES[4][bits >> 24 & 0xFF]
        ^ CRC_TABLES[3][bits >> 32 & 0xFF]
        ^ CRC_TABLES[2][bits >> 40 & 0xFF]
        ^ CRC_TABLES[1][bits >> 48 & 0xFF]
        ^ CRC_TABLES[0][bits >> 56]
    )


cdef struct Piece:
    char* bytes
    size_t used
    size_t room

cdef struct GroupHead:
    uint16_t parser_version
    uint16_t reserved
    uint32_t definitions
    uint32_t contexts
    uint32_t entries
    uint32_t keys
    uint32_t lines

cdef enum PieceOf:
    # In the order of the payload, behind the definitions.
    CONTEXT_TEXTS
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


@cython.final
cdef class GroupLog:
    """One payload in the making; a delivery is added line by line, and ends or is taken back as a whole."""

    cdef Piece pieces[10]
    cdef uint32_t contexts
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
        self.contexts = self.entries = self.keys = self.lines = self.lines_before = 0

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

    cdef uint32_t add_context(self, bytes text) except? 0:
        """Add a context as it is encoded; returns its number."""
        self._add(CONTEXT_TEXTS, <const char*>text, len(text))
        self.contexts += 1
        return self.contexts - 1

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

    cdef bytes payload(self, list definitions):
        """The payload, with the definitions that the group adds or None."""
        cdef GroupHead head
        cdef bytes whole
        cdef size_t size_bytes
        cdef char* at
        cdef int number
        cdef bytes text = b""
        cdef uint32_t count = 0
        if definitions is not None:
            count = <uint32_t>len(definitions)
            text = b"".join(map(encode_definition, definitions))
        head.parser_version = PARSER_VERSION
        head.reserved = 0
        head.definitions = count
        head.contexts = self.contexts
        head.entries = self.entries
        head.keys = self.keys
        head.lines = self.lines
        size_bytes = sizeof(GroupHead) + len(text)
        for number in range(<int>PIECES):
            size_bytes += self.pieces[number].used
        whole = PyBytes_FromStringAndSize(NULL, size_bytes)
        at = whole
        memcpy(at, &head, sizeof(GroupHead))
        at += sizeof(GroupHead)
        memcpy(at, <const char*>text, len(text))
        at += len(text)
        for number in range(<int>PIECES):
            if self.pieces[number].used:
                memcpy(at, self.pieces[number].bytes, self.pieces[number].used)
                at += self.pieces[number].used
        return whole
