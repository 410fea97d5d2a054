# Bytes of line protocol: runs, lines, trimming, unescaping. The same rules as `line_split`, without its masked copy.
#
# A backslash takes the next byte with it when that is one of  \ , space = "  and a taken byte never structures
# anything. Every scan starts behind a free byte, so reading forward byte by byte finds the same as the mask does.

cdef enum:
    COMMA = 1
    EQUALS = 2
    SPACE = 4
    TAB = 8
    QUOTE = 16
    BACKSLASH = 32
    TAKEN = COMMA | EQUALS | SPACE | QUOTE | BACKSLASH

cdef unsigned char CLASS_OF[256]
memset(CLASS_OF, 0, 256)
CLASS_OF[<int>c","] = COMMA
CLASS_OF[<int>c"="] = EQUALS
CLASS_OF[<int>c" "] = SPACE
CLASS_OF[<int>c"\t"] = TAB
CLASS_OF[<int>c'"'] = QUOTE
CLASS_OF[<int>c"\\"] = BACKSLASH


cdef inline const char* run(const char* at, const char* end, int stops) noexcept nogil:
    """Where the first free byte of one of the classes `stops` is, or `end`."""
    cdef int found
    while at < end:
        found = CLASS_OF[<unsigned char>at[0]]
        if found & stops:
            return at
        if found & BACKSLASH and at + 1 < end and CLASS_OF[<unsigned char>at[1]] & TAKEN:
            at += 2
        else:
            at += 1
    return end


cdef inline const char* spaces_end(const char* at, const char* end) noexcept nogil:
    while at < end and at[0] == c" ":
        at += 1
    return at


cdef inline const char* blanks_end(const char* at, const char* end) noexcept nogil:
    while at < end and (at[0] == c" " or at[0] == c"\t"):
        at += 1
    return at


cdef inline const char* find_byte(const char* at, char byte, const char* end) noexcept nogil:
    """Where `byte` is first, or `end`."""
    cdef const char* found = <const char*>memchr(at, byte, end - at) if at < end else NULL
    return end if found == NULL else found


cdef bint opens_string(const char* at, const char* end) noexcept nogil:
    """Whether a quote stands directly behind an equals sign, free or not."""
    while True:
        at = find_byte(at, c'"', end)
        if at == end:
            return False
        if (at - 1)[0] == c"=":  # at worst the byte before the text: the caller begins behind its first byte
            return True
        at += 1


cdef const char* line_end(const char* start, const char* end) noexcept nogil:
    """Where the line that starts at `start` ends: at an LF outside strings, or at the end of the payload.

    Behind the head a quote directly after `=` opens a string. One that nothing closes costs only its physical line.
    """
    cdef const char* stop = find_byte(start, c"\n", end)
    cdef const char* at = blanks_end(start, end)
    cdef const char* close
    if at < end and at[0] == c"#":
        return stop
    at = run(at, stop, SPACE) if at < stop else stop
    while True:
        at = run(at, stop, EQUALS)
        if at + 1 >= stop:
            return stop
        if at[1] != c'"':
            at += 1
            continue
        close = run(at + 2, end, QUOTE)
        if close == end:
            return stop
        if close > stop:
            stop = find_byte(close, c"\n", end)
        at = close + 1


cdef inline Py_ssize_t unescape(const char* at, Py_ssize_t length, int escapes, char* to) noexcept nogil:
    """Write what the text means to `to`, which has room for `length` bytes; returns the bytes written.

    A backslash before a byte of the classes `escapes` is dropped; every other one stays.
    """
    cdef const char* end = at + length
    cdef char* start = to
    while at < end:
        if at[0] == c"\\" and at + 1 < end and CLASS_OF[<unsigned char>at[1]] & escapes:
            at += 1
        to[0] = at[0]
        to += 1
        at += 1
    return to - start


cdef enum:
    MEASUREMENT_ESCAPES = COMMA | SPACE | BACKSLASH
    KEY_ESCAPES = COMMA | SPACE | BACKSLASH | EQUALS
    STRING_ESCAPES = QUOTE | BACKSLASH


cdef bytes unescaped(const char* at, Py_ssize_t length, int escapes):
    """The text's meaning as bytes."""
    cdef bytes text
    cdef Py_ssize_t size
    if memchr(at, c"\\", length) == NULL:
        return at[:length]
    text = PyBytes_FromStringAndSize(NULL, length)
    size = unescape(at, length, escapes, <char*>text)
    return text[:size]


cdef bint is_ascii(const char* at, Py_ssize_t length) noexcept nogil:
    cdef uint64_t word
    cdef uint64_t seen = 0
    while length >= 8:
        memcpy(&word, at, 8)
        seen |= word
        at += 8
        length -= 8
    while length > 0:
        seen |= <unsigned char>at[0]
        at += 1
        length -= 1
    return seen & 0x8080808080808080ULL == 0
