# The rejected lines of a delivery: the first ones one by one, further ones by their number.

cdef PyTypeObject* LINE_ERROR = <PyTypeObject*>LineError
cdef dict NO_KEYWORDS = {}

cdef enum:
    SAMPLE_SIZE = 200           # bytes of a line in its error, as `line_split.SAMPLE_BYTES`


cdef class Errors:
    """What is wrong with the lines of the delivery in work."""

    cdef LineReader reader
    cdef list errors            # or None
    cdef object further         # a Counter of rejected lines beyond those, by reason; or None

    @cython.final
    cdef int _reject_fault(self, Py_ssize_t number, Py_ssize_t lead) except -1:
        cdef LineReader reader = self.reader
        reason, text = FAULTS[reader.fault]
        if self._counts_only(reason):
            return 0
        return self._reject(
            number, reader.line, reader.end, lead, reader.fault_at, reason, reader.fault_text(text)
        )

    @cython.final
    cdef bint _counts_only(self, reason) except -1:
        """Whether so many lines of the delivery were rejected that this one is only counted."""
        if self.errors is None or len(self.errors) < MAX_ERRORS:
            return False
        if self.further is None:
            self.further = Counter()
        self.further[reason] += 1
        return True

    @cython.final
    cdef int _reject(
        self, Py_ssize_t number, const char* line, const char* end, Py_ssize_t lead, Py_ssize_t at, reason, text
    ) except -1:
        cdef bytes shown
        if not self._counts_only(reason):
            shown = line[:end - line] if end - line <= SAMPLE_SIZE else sample(line[:SAMPLE_SIZE + 1])
            parts = (number, lead + at + 1, reason, text, shown)
            self._note(call_new(LINE_ERROR, (parts,), NO_KEYWORDS))
        return 0

    @cython.final
    cdef int _note(self, error) except -1:
        if self.errors is None:
            self.errors = []
        self.errors.append(error)
