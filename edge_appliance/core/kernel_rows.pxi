# One line to a row of its table's tail, or to an error.

cdef object ONE_ROW = DeliveryResult(1)
cdef dict RESULTS = {}          # of deliveries without an error, by their number of rows
cdef bytes BYTE_ORDER_MARK = b"\xef\xbb\xbf"
cdef tuple KINDS = tuple(Kind)

cdef enum:
    MOST_RESULTS = 10_000       # numbers of rows whose result is kept
    LINES_AHEAD = 16
    LINES_PER_TURN = 4_096      # between two offers of the interpreter's lock
    BYTES_PER_TURN = 65_536
    DELIVERIES_PER_TURN = 1_024

cdef enum:
    # What `_resolve` finds.
    ODD = 1             # the names of the line need a closer look
    NEW_NAMES = 2       # a column is not defined yet

cdef str NUL_TEXT = "a NUL byte stands inside the line"
cdef str NON_FINITE_TEXT = "every field of the line is nan or inf"

cdef int64_t MOST_EXACT = 1LL << 53     # up to here every integer is a float


cdef struct LineAhead:
    # A line with what was found out about it while others were read.
    const char* start           # trimmed
    const char* end
    const char* head_end        # its first space
    Py_hash_t hashed            # of what stands before that
    Py_ssize_t number
    Py_ssize_t lead             # bytes that were trimmed from its start


cdef class LineAppender(Errors):
    """Appends lines to the open segment under what is decided for the delivery in work."""

    cdef object owner
    cdef object limits
    cdef int64_t harmless_bytes     # a shorter line can break no limit of length
    cdef GroupLog log
    cdef uint64_t call
    cdef uint64_t line_stamp
    cdef list touched               # writers of the buffers written to in this call
    cdef dict noted                 # of the segment: buffers written to since its mark
    # The delivery in work:
    cdef object segment
    cdef Place place
    cdef int64_t arrival_ns
    cdef int64_t first_ns
    cdef int64_t last_ns
    cdef bint is_replay
    cdef bint has_nul
    cdef dict dates                 # None: too few lines to bring too many
    cdef uint64_t delivery_stamp
    cdef object is_covered
    cdef uint32_t crc
    cdef Py_ssize_t lines
    cdef Py_ssize_t rows
    cdef Py_ssize_t covered
    cdef Py_ssize_t non_finite
    cdef Py_ssize_t collisions
    cdef Py_ssize_t sanitised

    def __init__(self, owner, limits):
        self.owner = owner
        self.limits = limits
        self.harmless_bytes = limits.harmless_line_bytes
        self.reader = LineReader()
        self.log = GroupLog()

    @cython.final
    cdef int _read_lines(self, const char* start, const char* end) except -1:
        """Append the lines of a payload."""
        cdef Py_ssize_t number = 1
        cdef bint has_strings = end - start > 2 and opens_string(start + 1, end)
        cdef const char* stop
        cdef const char* turn = start
        cdef LineAhead[LINES_AHEAD] ahead
        cdef LineAhead* line
        cdef int count
        cdef int at
        self.has_nul = find_byte(start, 0, end) != end
        if end - start > MAX_DATES and count_bytes(start, c"\n", end) >= MAX_DATES:
            self.dates = {}
        while start <= end:
            count = 0
            while start <= end and count < LINES_AHEAD and start - turn < BYTES_PER_TURN:
                stop = line_end(start, end) if has_strings else find_byte(start, c"\n", end)
                line = &ahead[count]
                line.number = number
                trim(line, start, stop)
                if line.start < line.end and line.start[0] != c"#":
                    self._look_ahead(line)
                    count += 1
                number += 1
                if has_strings:
                    number += count_bytes(start, c"\n", stop)
                start = stop + 1
            for at in range(count):
                self.place.heads.fetch(ahead[at].hashed)
            for at in range(count):
                self._append_line(&ahead[at])
            if self.lines % LINES_PER_TURN < count or start - turn >= BYTES_PER_TURN:
                turn = start
                with nogil:
                    pass
        return 0

    @cython.final
    cdef inline void _look_ahead(self, LineAhead* line) noexcept:
        """Find where the line's head ends, nearly always, and have its slot fetched from memory meanwhile."""
        line.head_end = find_byte(line.start, c" ", line.end)
        line.hashed = hash_bytes(line.start, line.head_end - line.start)
        self.place.heads.fetch_slot(line.hashed)

    @cython.final
    cdef int _append_line(self, LineAhead* ahead) except -1:
        """Append a trimmed line, or note what is wrong with it."""
        cdef LineReader reader = self.reader
        cdef const char* line = ahead.start
        cdef const char* end = ahead.end
        cdef const char* head_end = ahead.head_end
        cdef Py_ssize_t number = ahead.number
        cdef Py_ssize_t lead = ahead.lead
        cdef const char* at
        cdef Entry* entry
        self.lines += 1
        if self.has_nul:
            at = find_byte(line, 0, end)
            if at != end:
                return self._reject(number, line, end, lead, at - line, Reason.NUL_BYTE, NUL_TEXT)
        entry = self.place.heads.find_hashed(line, head_end - line, ahead.hashed)
        if entry == NULL:
            # No head ends in a backslash, so one that is known ends at its first space.
            at = run(line, end, SPACE)
            if at != head_end:
                head_end = at
                entry = self.place.heads.find(line, head_end - line)
        reader.begin(line, end, head_end)
        if entry == NULL and not reader.read_head():
            return self._reject_fault(number, lead)
        if not reader.read_fields() or not reader.read_time():
            self.non_finite += reader.no_value_count
            return self._reject_fault(number, lead)
        self.non_finite += reader.no_value_count
        if entry == NULL:
            return self._append_unknown(number, lead)
        return self._append_known(number, lead, entry)

    @cython.final
    cdef int _append_known(self, Py_ssize_t number, Py_ssize_t lead, Entry* entry) except -1:
        """Append a line of a known series."""
        cdef LineReader reader = self.reader
        cdef TailWriter writer = self._writer(entry)
        cdef Py_ssize_t conflict = -1
        cdef int found = self._resolve(writer, &conflict)
        cdef int64_t time_ns = self.arrival_ns
        cdef uint32_t ref = entry.number
        cdef uint32_t collisions = entry.collisions
        cdef PyObject* head = entry.value   # borrowed: what adds heads comes last
        if (found & ODD or reader.end - reader.line > self.harmless_bytes) and not self.is_replay:
            fault = name_fault(reader, (<object>head).tag_names, False, self.limits)
            if fault is not None:
                return self._reject(number, reader.line, reader.end, lead, fault[1], fault[0], fault[2])
        if not self._read_time(&time_ns, number, lead):
            return 0
        if self.dates is not None or self.is_replay:
            if not self._is_wanted(writer, (<object>head).measurement, time_ns, number, lead):
                return 0
        if conflict >= 0:
            return self._reject_conflict(writer, number, lead, conflict)
        if found & NEW_NAMES:
            return self._append_names(<object>head, number, lead, time_ns)
        self.collisions += collisions
        if writer.touched_in != self.call:
            # Before the row: when memory ends in the middle of it, what there is of it must be taken back.
            self.noted[<object>writer.buffer] = None
            self.touched.append(writer)
            writer.touched_in = self.call
        writer.put_row(ref, time_ns, reader)
        return self._accept(time_ns)

    @cython.final
    cdef TailWriter _writer(self, Entry* entry):
        cdef TailWriter writer
        if entry.writer == NULL:
            head = <object>entry.value
            buffer = head.buffer
            if buffer.writer is None:
                buffer.writer = TailWriter(buffer)
            entry.writer = <void*>buffer.writer
            entry.number = head.ref
            entry.collisions = head.collisions
        writer = <TailWriter>entry.writer
        if not writer.is_bound:
            writer.bind()
        return writer

    @cython.final
    cdef int _resolve(self, TailWriter writer, Py_ssize_t* conflict) except -1:
        """Find the columns of the line's fields; says what is odd about them, and the first that does not fit."""
        cdef LineReader reader = self.reader
        cdef int found = 0
        cdef int32_t expected = writer.first
        cdef int32_t previous = -1
        cdef int32_t place
        cdef Py_ssize_t number
        cdef Field* field
        cdef Column* column
        cdef const char* key
        cdef Py_ssize_t key_bytes
        self.line_stamp += 1
        for number in range(reader.field_count):
            field = &reader.fields[number]
            key = reader.line + field.key_at
            key_bytes = field.key_end - field.key_at
            if memchr(key, c"\\", key_bytes) == NULL:
                place = writer.find(expected, key, <uint32_t>key_bytes)
            else:
                name = unescaped(key, key_bytes, KEY_ESCAPES)
                place = writer.find(expected, name, <uint32_t>len(name))
            field.column = place
            if place < 0:
                found |= ODD
                if field.form != FORM_NO_VALUE:
                    if place == IS_NEW:
                        found |= NEW_NAMES
                    elif conflict[0] < 0:
                        conflict[0] = number
                continue
            column = &writer.columns[place]
            if column.seen_in == self.line_stamp:
                found |= ODD
            column.seen_in = self.line_stamp
            if place != expected:
                if previous < 0:
                    writer.first = place
                else:
                    writer.columns[previous].next = place
            previous = place
            expected = column.next
            if column.kind != field.form and conflict[0] < 0 and not fits(column.kind, field):
                conflict[0] = number
        return found

    @cython.final
    cdef bint _read_time(self, int64_t* time_ns, Py_ssize_t number, Py_ssize_t lead) except -1:
        """The line's time, when it states one; False when the line is rejected here."""
        cdef LineReader reader = self.reader
        cdef const char* word = reader.time_at
        cdef Py_ssize_t length = reader.time_end - word
        cdef Py_ssize_t at = word - reader.line
        cdef uint64_t stated
        if reader.no_value_count == reader.field_count:
            self._reject(
                number, reader.line, reader.end, lead, reader.fields[0].value_at, Reason.NON_FINITE, NON_FINITE_TEXT
            )
            return False
        if not length:
            return True
        if (
            read_integer(word, length, KIND_INT, &stated) != KIND_INT
            or not scale_time(<int64_t>stated, self.place.unit_ns, time_ns)
        ):
            text = f"the time {show(word[:length])} does not fit into 64 bits of nanoseconds"
            self._reject(number, reader.line, reader.end, lead, at, Reason.TIME_OUT_OF_RANGE, text)
            return False
        if time_ns[0] < self.first_ns or time_ns[0] > self.last_ns:
            border = "before min_time" if time_ns[0] < self.first_ns else "further ahead than max_future"
            meaning = time_meaning(time_ns[0], self.place.precision)
            text = f"the time {show(word[:length])} {meaning}: {border} of the route"
            self._reject(number, reader.line, reader.end, lead, at, Reason.TIME_OUT_OF_RANGE, text)
            return False
        return True

    @cython.final
    cdef bint _is_wanted(
        self, TailWriter writer, measurement, int64_t time_ns, Py_ssize_t number, Py_ssize_t lead
    ) except -1:
        """Whether a line's date is one of the first that its delivery brings, or at replay in no part yet."""
        cdef int64_t day = day_of(time_ns)
        if self.is_replay:
            self.crc = crc_of_time(self.crc, time_ns)
            self.rows += 1
            if self.is_covered is not None and self.is_covered(self.place.database, measurement, day):
                self.covered += 1
                return False
            return True
        if writer is not None and writer.last_day_in == self.delivery_stamp and writer.last_day == day:
            return True
        seen = self.dates.setdefault(measurement, set())
        if day not in seen:
            if len(seen) >= MAX_DATES:
                reader = self.reader
                self._reject(
                    number, reader.line, reader.end, lead, 0, Reason.TIME_OUT_OF_RANGE, TOO_MANY_DATES
                )
                return False
            seen.add(day)
        if writer is not None:
            writer.last_day_in = self.delivery_stamp
            writer.last_day = day
        return True

    @cython.final
    cdef int _accept(self, int64_t time_ns) except -1:
        cdef LineReader reader = self.reader
        if not self.is_replay:
            self.log.add_line(reader.line, <uint32_t>(reader.end - reader.line))
            self.crc = crc_of_time(self.crc, time_ns)
            self.rows += 1
        return 0

    # What adds names

    @cython.final
    cdef int _append_unknown(self, Py_ssize_t number, Py_ssize_t lead) except -1:
        """Append a line whose head was not seen before."""
        cdef LineReader reader = self.reader
        cdef int64_t time_ns = self.arrival_ns
        cdef Py_ssize_t at
        cdef dict own = {}
        cdef dict tags
        for at in range(reader.tag_count):
            key = unescaped(
                reader.line + reader.tags[at].key_at, reader.tags[at].key_end - reader.tags[at].key_at, KEY_ESCAPES
            )
            value = unescaped(
                reader.line + reader.tags[at].value_at,
                reader.tags[at].value_end - reader.tags[at].value_at,
                KEY_ESCAPES,
            )
            own[key.decode()] = value.decode()
        measurement = unescaped(reader.line, reader.measurement_end, MEASUREMENT_ESCAPES).decode()
        tags = {**dict(self.place.route_tags), **own}
        names = frozenset(tags)
        if not self.is_replay:
            fault = name_fault(reader, names, True, self.limits)
            if fault is not None:
                return self._reject(number, reader.line, reader.end, lead, fault[1], fault[0], fault[2])
        if not self._read_time(&time_ns, number, lead):
            return 0
        if self.dates is not None or self.is_replay:
            if not self._is_wanted(None, measurement, time_ns, number, lead):
                return 0
        collisions = len(self.place.route_tags) + len(own) - len(tags)
        head = Head(measurement, tuple(sorted(tags.items())), collisions, names)
        return self._append_names(head, number, lead, time_ns)

    @cython.final
    cdef int _append_names(self, head, Py_ssize_t number, Py_ssize_t lead, int64_t time_ns) except -1:
        """Append a line that adds a series, a column or a table, by the reference."""
        cdef LineReader reader = self.reader
        cdef list fields = []
        cdef list values = []
        cdef Py_ssize_t at
        cdef Field* field
        for at in range(reader.field_count):
            field = &reader.fields[at]
            if field.form != FORM_NO_VALUE:
                name = unescaped(reader.line + field.key_at, field.key_end - field.key_at, KEY_ESCAPES)
                value = field_value(field, reader.line)
                fields.append((name.decode(), KINDS[field.form], value))
                values.append(value)
        shape = self.owner._shapes.of(fields)
        raw_head = reader.line[:reader.head_end - reader.line]
        span = reader.line[:reader.end - reader.line]
        line = Line(head, raw_head, shape, values, time_ns, number, lead + 1, span)
        error = self.owner._append_line(self.segment, self.place.database, self.place.heads, line, None)
        if error is not None:
            if not self._counts_only(error.reason):
                self._note(error)
            return 0
        self.collisions += head.collisions
        return self._accept(time_ns)

    # What is wrong with a line

    @cython.final
    cdef int _reject_conflict(
        self, TailWriter writer, Py_ssize_t number, Py_ssize_t lead, Py_ssize_t conflict
    ) except -1:
        """Reject a line for a field that does not fit its column."""
        cdef LineReader reader = self.reader
        cdef Field* field = &reader.fields[conflict]
        if self._counts_only(Reason.TAG_FIELD_COLLISION if field.column == IS_TAG else Reason.TYPE_CONFLICT):
            return 0
        name = unescaped(reader.line + field.key_at, field.key_end - field.key_at, KEY_ESCAPES).decode()
        table = (<object>writer.buffer).schema.name
        verdict = check_kind(KINDS[field.form], field_value(field, reader.line), writer.kinds[name])
        text = f"column {name} of table {table} {verdict[1]}"
        return self._reject(number, reader.line, reader.end, lead, field.value_at, verdict[0], text)
