# What is known about deliveries before their bytes are read, and small helpers of appending.

@cython.final
cdef class Place:
    """What deliveries of one database, precision, set of route tags and source share."""

    cdef str database
    cdef object route_tags
    cdef Index heads
    cdef int64_t unit_ns        # 0: by magnitude
    cdef bytes logged           # as it stands in the log
    cdef uint64_t logged_in     # the group that names it, and its number there
    cdef uint32_t number
    cdef str precision


@cython.final
cdef class Reader:
    """What is decided about the deliveries of one origin before their bytes are read."""

    cdef Place place
    cdef int64_t first_ns
    cdef object max_future_ns


cdef inline bint fits(int32_t kind, Field* field) noexcept:
    """Whether a field of another form than its column's kind goes there all the same."""
    cdef int64_t value
    if field.form == FORM_NO_VALUE:
        return True
    if kind != KIND_FLOAT or field.form != KIND_INT:
        return False
    value = <int64_t>field.bits
    return -MOST_EXACT <= value <= MOST_EXACT


cdef object field_value(Field* field, const char* line):
    """The value of a field as Python has it."""
    cdef double number
    if field.form == KIND_STRING:
        return unescaped(line + field.value_at + 1, field.value_end - field.value_at - 2, STRING_ESCAPES).decode()
    if field.form == KIND_FLOAT:
        memcpy(&number, &field.bits, 8)
        return number
    if field.form == KIND_INT:
        return <int64_t>field.bits
    if field.form == KIND_UINT:
        return field.bits
    return field.bits != 0


cdef inline void trim(LineAhead* line, const char* start, const char* end) noexcept nogil:
    """Take a line without blanks around it and without one CR at its end."""
    if end > start and (end - 1)[0] == c"\r":
        end -= 1
    while end > start and ((end - 1)[0] == c" " or (end - 1)[0] == c"\t"):
        end -= 1
    line.start = blanks_end(start, end)
    line.end = end
    line.lead = line.start - start


cdef Py_ssize_t count_bytes(const char* at, char byte, const char* end) noexcept nogil:
    cdef Py_ssize_t count = 0
    while at < end:
        count += at[0] == byte
        at += 1
    return count
