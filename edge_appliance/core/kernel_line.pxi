# The grammar of one line, as `line_grammar` states it: its parts with their places, or the first fault from the left.
#
# A fault is a number that stands for reason and text (`FAULTS`), where it is, and up to two pieces of the line that
# the text shows. Nothing here knows limits, reserved names or tables.

cdef struct Tag:
    uint32_t key_at
    uint32_t key_end
    uint32_t value_at
    uint32_t value_end

cdef struct Field:
    uint32_t key_at
    uint32_t key_end
    uint32_t value_at       # of a string: its quote
    uint32_t value_end      # of a string: behind its closing quote
    uint64_t bits           # of a number or boolean
    int32_t column          # in the tail; below 0: see `Resolved`
    uint8_t form            # KIND_… or FORM_NO_VALUE

cdef enum Fault:
    NO_FAULT
    A_TAB
    NO_KEY_BEHIND_COMMA
    COMMA_FOR_KEY
    ENDS_IN_BACKSLASH
    NO_MEASUREMENT
    TAG_WITHOUT_EQUALS
    TAG_WITHOUT_KEY
    TAG_WITHOUT_VALUE
    NO_FIELDS
    FIELD_WITHOUT_EQUALS
    FIELD_WITHOUT_KEY
    FIELD_WITHOUT_VALUE
    STRING_FOLLOWED
    BAD_VALUE
    VALUE_OUT_OF_RANGE
    OPEN_FIELD_STRING
    OPEN_STRING
    BAD_TIME
    TEXT_BEHIND_TIME
    TOO_MANY_TAGS
    TOO_MANY_FIELDS

FAULTS = (
    None,
    (Reason.UNEXPECTED_TAB, "a TAB stands outside a quoted string; only spaces separate"),
    (Reason.UNEXPECTED_COMMA, "no key follows the comma"),
    (Reason.UNEXPECTED_COMMA, "a comma stands where a key and '=' are expected"),
    (Reason.TRAILING_BACKSLASH, "%s ends in a backslash"),
    (Reason.MISSING_MEASUREMENT, "the line has no measurement before its first comma"),
    (Reason.MISSING_TAG_VALUE, "tag %s has no '=' and no value"),
    (Reason.MISSING_TAG_KEY, "a tag has no key before its '='"),
    (Reason.MISSING_TAG_VALUE, "tag %s has no value"),
    (Reason.MISSING_FIELDS, "the line ends before any field"),
    (Reason.MISSING_FIELD_VALUE, "field %s has no '=' and no value"),
    (Reason.MISSING_FIELD_KEY, "a field has no key before its '='"),
    (Reason.MISSING_FIELD_VALUE, "field %s has no value"),
    (Reason.BAD_FIELD_VALUE, "the string of field %s is followed by %s"),
    (Reason.BAD_FIELD_VALUE, "field %s: %s is not a number, a boolean or a quoted string"),
    (Reason.NUMBER_OUT_OF_RANGE, "field %s: %s does not fit into 64 bits"),
    (Reason.UNTERMINATED_STRING, "the string of field %s is not closed before the payload ends"),
    (Reason.UNTERMINATED_STRING, "a string is not closed before the payload ends"),
    (Reason.BAD_TIMESTAMP, "%s stands in the place of the time and is not an integer"),
    (Reason.TRAILING_TEXT, "%s follows the time"),
    (Reason.TOO_MANY_COLUMNS, TOO_MANY_PARTS.format("tags")),
    (Reason.TOO_MANY_COLUMNS, TOO_MANY_PARTS.format("fields")),
)

cdef frozenset SHOWS_ONE = frozenset(n for n, fault in enumerate(FAULTS) if fault and fault[1].count("%s") == 1)
cdef frozenset SHOWS_BOTH = frozenset(n for n, fault in enumerate(FAULTS) if fault and fault[1].count("%s") == 2)

cdef Py_ssize_t MOST_PARTS = MAX_PARTS

cdef enum:
    FIRST_PARTS = 16
    FOLLOWING_BYTES = 9     # shown of what follows a string
    TRAILING_BYTES = 96     # shown of what follows the time
    PLAIN_BYTES = 48        # up to here a text is shown whole


@cython.final
cdef class LineReader:
    """The parts of the line that was read last."""

    cdef const char* line
    cdef const char* end
    cdef const char* head_end
    cdef Py_ssize_t measurement_end
    cdef Tag* tags
    cdef Py_ssize_t tag_count
    cdef Py_ssize_t tag_room
    cdef Field* fields
    cdef Py_ssize_t field_count
    cdef Py_ssize_t field_room
    cdef Py_ssize_t no_value_count
    cdef const char* time_at
    cdef const char* time_end
    cdef int fault
    cdef Py_ssize_t fault_at
    cdef const char* shown[2]
    cdef Py_ssize_t shown_bytes[2]

    def __cinit__(self):
        self.tags = <Tag*>PyMem_RawMalloc(FIRST_PARTS * sizeof(Tag))
        self.fields = <Field*>PyMem_RawMalloc(FIRST_PARTS * sizeof(Field))
        if self.tags == NULL or self.fields == NULL:
            raise MemoryError
        self.tag_room = FIRST_PARTS
        self.field_room = FIRST_PARTS

    def __dealloc__(self):
        PyMem_RawFree(self.tags)
        PyMem_RawFree(self.fields)

    cdef void begin(self, const char* line, const char* end, const char* head_end) noexcept:
        """Look at another line, whose head is known to end at `head_end`."""
        self.line = line
        self.end = end
        self.head_end = head_end
        self.tag_count = 0
        self.field_count = 0
        self.no_value_count = 0
        self.fault = NO_FAULT

    cdef bint _fail(self, int fault, const char* at) noexcept:
        self.fault = fault
        self.fault_at = at - self.line
        return False

    cdef bint _fail_with(self, int fault, const char* at, const char* shown, const char* shown_end) noexcept:
        self.shown[0] = shown
        self.shown_bytes[0] = shown_end - shown
        return self._fail(fault, at)

    cdef bint _fail_with_both(
        self, int fault, const char* at, const char* key, const char* key_end, const char* text, const char* text_end
    ) noexcept:
        self.shown[1] = text
        self.shown_bytes[1] = text_end - text
        return self._fail_with(fault, at, key, key_end)

    cdef str fault_text(self, str text):
        """The text of the fault, with the pieces of the line that it shows."""
        if self.fault in SHOWS_ONE:
            return text % shown_text(self.shown[0], self.shown_bytes[0])
        if self.fault in SHOWS_BOTH:
            return text % (
                shown_text(self.shown[0], self.shown_bytes[0]), shown_text(self.shown[1], self.shown_bytes[1])
            )
        return text

    # Head

    cdef int read_head(self) except -1:
        """Read measurement and tags, which fill the line up to `head_end`; 0 with a fault."""
        cdef const char* end = self.head_end
        cdef const char* at = run(self.line, end, COMMA | TAB)
        if not self._ends_well(self.line, at, end):
            return 0
        if at == self.line:
            return self._fail(NO_MEASUREMENT, at)
        self.measurement_end = at - self.line
        while at < end:
            if self.tag_count == MOST_PARTS:
                return self._fail(TOO_MANY_TAGS, at)
            if self.tag_count == self.tag_room:
                self._grow_tags()
            at = self._read_tag(&self.tags[self.tag_count], at + 1, end)
            if at == NULL:
                return 0
            self.tag_count += 1
        return 1

    cdef const char* _read_tag(self, Tag* tag, const char* start, const char* end) noexcept:
        """Read the tag behind a comma; where it ends, or NULL with a fault."""
        cdef const char* at = run(start, end, COMMA | EQUALS | TAB)
        cdef const char* value
        if not self._key_ends_well(start, at, end):
            return NULL
        if at == end:
            self._fail_with(TAG_WITHOUT_EQUALS, at, start, at)
            return NULL
        if at == start:
            self._fail(TAG_WITHOUT_KEY, at)
            return NULL
        value = at + 1
        tag.key_at = start - self.line
        tag.key_end = at - self.line
        at = run(value, end, COMMA | TAB)
        if not self._ends_well(value, at, end):
            return NULL
        if at == value:
            self._fail_with(TAG_WITHOUT_VALUE, at, start, value - 1)
            return NULL
        tag.value_at = value - self.line
        tag.value_end = at - self.line
        return at

    cdef bint _key_ends_well(self, const char* start, const char* at, const char* end) noexcept:
        """Whether a key may end where it does, but for what is missing behind it."""
        cdef char stop = at[0] if at < end else c" "
        if stop == c"," and at < end:
            return self._fail(COMMA_FOR_KEY, at)
        if at == start and stop == c" ":
            return self._fail(NO_KEY_BEHIND_COMMA, start - 1)
        return self._ends_well(start, at, end)

    cdef bint _ends_well(self, const char* start, const char* at, const char* end) noexcept:
        """Whether a name or tag value runs into no TAB and ends in no backslash, taken or not."""
        if at < end and at[0] == c"\t":
            return self._fail(A_TAB, at)
        if at > start and (at - 1)[0] == c"\\":
            return self._fail_with(ENDS_IN_BACKSLASH, at - 1, start, at)
        return True

    # Fields

    cdef int read_fields(self) except -1:
        """Read the field list behind the head; 0 with a fault, before which stand the fields that were read."""
        cdef const char* end = self.end
        cdef const char* at = spaces_end(self.head_end, end)
        cdef Field* field
        if at == end:
            return self._fail(NO_FIELDS, at)
        while True:
            if self.field_count == MOST_PARTS:
                return self._fail(TOO_MANY_FIELDS, at)
            if self.field_count == self.field_room:
                self._grow_fields()
            field = &self.fields[self.field_count]
            if not self._read_field(field, at):
                return 0
            self.field_count += 1
            if field.form == FORM_NO_VALUE:
                self.no_value_count += 1
            at = self.line + field.value_end
            if at == end or at[0] != c",":
                self.time_at = at
                return 1
            at += 1

    cdef int _read_field(self, Field* field, const char* start) except -1:
        cdef const char* end = self.end
        cdef const char* at = run(start, end, COMMA | EQUALS | TAB | SPACE)
        cdef const char* value
        if not self._key_ends_well(start, at, end):
            return 0
        if at == end or at[0] != c"=":
            return self._fail_with(FIELD_WITHOUT_EQUALS, at, start, at)
        if at == start:
            return self._fail(FIELD_WITHOUT_KEY, at)
        field.key_at = start - self.line
        field.key_end = at - self.line
        value = at + 1
        field.value_at = value - self.line
        if value < end and value[0] == c'"':
            return self._read_string(field, value)
        return self._read_number_or_bool(field, value)

    cdef int _read_string(self, Field* field, const char* start) noexcept:
        cdef const char* end = self.end
        cdef const char* key = self.line + field.key_at
        cdef const char* key_end = self.line + field.key_end
        cdef const char* at = run(start + 1, end, QUOTE)
        if at == end:
            return self._fail_with(OPEN_FIELD_STRING, start, key, key_end)
        at += 1
        if at < end and at[0] == c"\t":
            return self._fail(A_TAB, at)
        if at < end and at[0] != c"," and at[0] != c" ":
            return self._fail_with_both(STRING_FOLLOWED, at, key, key_end, at, min(at + FOLLOWING_BYTES, end))
        field.form = KIND_STRING
        field.value_end = at - self.line
        return 1

    cdef int _read_number_or_bool(self, Field* field, const char* start) except -1:
        cdef const char* key = self.line + field.key_at
        cdef const char* key_end = self.line + field.key_end
        cdef int form
        cdef const char* at = read_short_number(start, self.end, &form, &field.bits) if start < self.end else NULL
        if at != NULL:
            field.form = form
            field.value_end = at - self.line
            return 1
        at = self._word_end(start, COMMA | EQUALS | TAB | SPACE)
        if at == NULL:
            return 0
        if at == start:
            return self._fail_with(FIELD_WITHOUT_VALUE, at, key, key_end)
        form = read_word(start, at - start, &field.bits)
        if form == FORM_BAD:
            return self._fail_with_both(BAD_VALUE, start, key, key_end, start, at)
        if form == FORM_OUT_OF_RANGE:
            return self._fail_with_both(VALUE_OUT_OF_RANGE, start, key, key_end, start, at)
        field.form = form
        field.value_end = at - self.line
        return 1

    cdef const char* _word_end(self, const char* at, int stops) noexcept:
        """Where an unquoted word behind the head ends, or NULL with a fault.

        A quote behind a free `=` opens a string even where none is allowed, so that a rejected line ends where the
        device meant it to end; what stands inside is neither a separator nor a stray TAB.
        """
        cdef const char* end = self.end
        cdef const char* quote
        while True:
            at = run(at, end, stops)
            if at == end:
                return at
            if at[0] == c"\t":
                self._fail(A_TAB, at)
                return NULL
            if at[0] != c"=":
                return at
            at += 1
            if at < end and at[0] == c'"':
                quote = at
                at = run(at + 1, end, QUOTE)
                if at == end:
                    self._fail(OPEN_STRING, quote)
                    return NULL
                at += 1

    # Time

    cdef int read_time(self) noexcept:
        """Read the word behind the field list, an empty one if there is none; 0 with a fault."""
        cdef const char* end = self.end
        cdef const char* start = spaces_end(self.time_at, end)
        cdef const char* at
        self.time_at = start
        self.time_end = start
        if start == end:
            return 1
        at = self._word_end(start, EQUALS | TAB | SPACE)
        if at == NULL:
            return 0
        if start + (start[0] == c"-") == at or not all_digits(start + (start[0] == c"-"), at):
            return self._fail_with(BAD_TIME, start, start, at)
        self.time_end = at
        at = spaces_end(at, end)
        if at == end:
            return 1
        if at[0] == c"\t":
            return self._fail(A_TAB, at)
        return self._fail_with(TEXT_BEHIND_TIME, at, at, min(at + TRAILING_BYTES, end))

    # Room

    cdef int _grow_tags(self) except -1:
        cdef Tag* grown = <Tag*>PyMem_RawRealloc(self.tags, 2 * self.tag_room * sizeof(Tag))
        if grown == NULL:
            raise MemoryError
        self.tags = grown
        self.tag_room *= 2

    cdef int _grow_fields(self) except -1:
        cdef Field* grown = <Field*>PyMem_RawRealloc(self.fields, 2 * self.field_room * sizeof(Field))
        if grown == NULL:
            raise MemoryError
        self.fields = grown
        self.field_room *= 2


cdef str shown_text(const char* text, Py_ssize_t length):
    """A piece of the line as `line_grammar.show` shows it."""
    cdef Py_ssize_t at
    if length <= PLAIN_BYTES:
        for at in range(length):
            if not 0x20 <= text[at] < 0x7F or text[at] == c"'" or text[at] == c"\\":
                break
        else:
            return "'" + text[:length].decode("ascii") + "'"
    return show(text[:length])
