# Writing rows to the tail of a table: the arrays of `columns.Tail`, by their memory.
#
# A view copies a tail up to its mark while the interpreter's lock is held, as it is here: it never sees half a row.

cdef struct Column:
    PyObject* rows          # arrays; the column in `names` keeps them
    PyObject* values
    PyObject* offsets
    const char* name
    uint32_t name_bytes
    int32_t next            # the column that stood behind it in the last line
    int32_t kind
    uint64_t seen_in        # number of the last line that had it

cdef enum Resolved:
    # What a field's key is, when it is no column of the tail.
    IS_NEW = -1
    IS_TAG = -2

@cython.final
cdef class TailWriter:
    """Where the rows of one table go."""

    cdef PyObject* buffer       # borrowed: the buffer owns its writer
    cdef bint is_bound
    cdef object tail
    cdef dict kinds
    cdef array.array series
    cdef array.array time
    cdef Index names
    cdef list spelled           # the names, in memory that does not move
    cdef Column* columns
    cdef int32_t count
    cdef int32_t room
    cdef int32_t first
    cdef uint64_t touched_in    # the call that wrote to it last
    cdef int64_t grown_bytes    # since then
    cdef bint has_shown_day     # a day that the buffer has among its days
    cdef int64_t shown_day
    cdef int64_t last_day
    cdef uint64_t last_day_in   # the delivery that this was in

    def __cinit__(self, buffer):
        self.buffer = <PyObject*>buffer
        self.names = Index()
        self.columns = NULL

    def __dealloc__(self):
        PyMem_RawFree(self.columns)

    def forget(self):
        """The tail is another one, or shorter: look at it anew."""
        self.is_bound = False
        self.names.clear()
        self.spelled = []
        self.tail = None
        self.series = None
        self.time = None
        self.count = 0
        self.first = 0
        self.grown_bytes = 0

    cdef int bind(self) except -1:
        """Look at the tail as it is."""
        self.forget()
        self.tail = (<object>self.buffer).tail
        self.kinds = (<object>self.buffer).schema.kinds
        self.series = self.tail.series
        self.time = self.tail.time
        self.is_bound = True

    cdef int flush(self) except -1:
        """Tell the buffer how much it has grown."""
        cdef int64_t tail_bytes
        if self.grown_bytes:
            tail_bytes = (<object>self.buffer).tail_bytes
            (<object>self.buffer).tail_bytes = tail_bytes + self.grown_bytes
            self.grown_bytes = 0

    def publish(self):
        """Move the mark over all rows; returns by how many bytes what is visible has grown."""
        cdef object buffer = <object>self.buffer
        cdef Py_ssize_t row = buffer.mark
        cdef Py_ssize_t rows
        cdef int64_t tail_bytes = buffer.tail_bytes
        cdef int64_t grown_bytes = tail_bytes - <int64_t>buffer.tail_bytes_mark
        cdef int64_t lowest = INT64_MAX
        cdef int64_t highest = INT64_MIN
        cdef int64_t time_ns
        if not self.is_bound:
            self.bind()
        rows = Py_SIZE(self.time)
        if rows == row:
            return 0
        buffer.mark = rows
        while row < rows:
            time_ns = self.time.data.as_longlongs[row]
            lowest = min(lowest, time_ns)
            highest = max(highest, time_ns)
            if day_of(time_ns) != self.shown_day or not self.has_shown_day:
                self.shown_day = day_of(time_ns)
                self.has_shown_day = True
                buffer.days.add(self.shown_day)
            row += 1
        if lowest < <int64_t>buffer.min_time_ns:
            buffer.min_time_ns = lowest
        if highest > <int64_t>buffer.max_time_ns:
            buffer.max_time_ns = highest
        buffer.series_mark = len(buffer.series)
        buffer.tail_bytes_mark = tail_bytes
        return grown_bytes

    cdef inline int32_t find(self, int32_t expected, const char* name, uint32_t name_bytes) except -3:
        """The column of a field's key, which is nearly always the expected one; or what the key is else."""
        cdef Column* column
        cdef Entry* entry
        if expected < self.count:
            column = &self.columns[expected]
            if column.name_bytes == name_bytes and not memcmp(column.name, name, name_bytes):
                return expected
        entry = self.names.find(name, name_bytes)
        if entry != NULL:
            return entry.number
        return self._bind_column(name, name_bytes)

    cdef int32_t _bind_column(self, const char* name, uint32_t name_bytes) except -3:
        """Look a key up among the definitions, and take its column in the tail."""
        cdef str text = name[:name_bytes].decode()
        kind = self.kinds.get(text)
        if kind is None:
            return IS_NEW
        if kind == KIND_TAG:
            return IS_TAG
        column = self.tail.columns.get(text)
        if column is None:
            column = self.tail.columns[text] = TailColumn(kind)
        return self._add_column(name[:name_bytes], column)

    cdef int32_t _add_column(self, bytes name, object tail_column) except -3:
        cdef Column* grown
        cdef Column* column
        cdef int32_t number = self.count
        if number == self.room:
            grown = <Column*>PyMem_RawRealloc(self.columns, (2 * self.room + 8) * sizeof(Column))
            if grown == NULL:
                raise MemoryError
            self.columns = grown
            self.room = 2 * self.room + 8
        column = &self.columns[number]
        # The tail column holds its three arrays as long as it lives, and the index holds the tail column.
        column.rows = <PyObject*>tail_column.rows
        column.values = <PyObject*>tail_column.values
        column.offsets = <PyObject*>tail_column.offsets
        column.kind = tail_column.kind
        column.name = name
        column.name_bytes = <uint32_t>len(name)
        column.next = number + 1
        column.seen_in = 0
        self.spelled.append(name)
        self.names.put(name, len(name), tail_column).number = number
        self.count = number + 1
        return number

    cdef int put_row(self, uint32_t ref, int64_t time_ns, LineReader line) except -1:
        """Append a row: the fields of `line`, which fit their columns."""
        cdef Py_ssize_t row = Py_SIZE(self.time)
        cdef Py_ssize_t number
        cdef int64_t size_bytes = ROW_COST + VALUE_COST * (line.field_count - line.no_value_count)
        cdef Field* field
        array.resize_smart(self.series, row + 1)
        self.series.data.as_uints[row] = ref
        array.resize_smart(self.time, row + 1)
        self.time.data.as_longlongs[row] = time_ns
        for number in range(line.field_count):
            field = &line.fields[number]
            if field.form != FORM_NO_VALUE:
                size_bytes += put_value(&self.columns[field.column], <uint32_t>row, field, line.line)
        self.grown_bytes += size_bytes


cdef inline int64_t day_of(int64_t time_ns) noexcept nogil:
    """UTC day since 1970."""
    return time_ns // NS_PER_DAY - (1 if time_ns % NS_PER_DAY < 0 else 0)


cdef int64_t put_value(Column* column, uint32_t row, Field* field, const char* line) except -1:
    """Append one value; returns what it costs beyond `VALUE_COST`."""
    cdef Py_ssize_t place = Py_SIZE(<object>column.rows)
    cdef double whole
    if column.kind == KIND_STRING:
        return put_string(column, row, field, line)
    array.resize_smart(<array.array>column.rows, place + 1)
    (<array.array>column.rows).data.as_uints[place] = row
    array.resize_smart(<array.array>column.values, place + 1)
    if column.kind == KIND_BOOL:
        (<array.array>column.values).data.as_schars[place] = <signed char>field.bits
    elif column.kind == KIND_FLOAT and field.form == KIND_INT:
        whole = <double><int64_t>field.bits
        (<array.array>column.values).data.as_doubles[place] = whole
    else:
        (<array.array>column.values).data.as_ulonglongs[place] = field.bits
    return 0


cdef int64_t put_string(Column* column, uint32_t row, Field* field, const char* line) except -1:
    cdef array.array values = <array.array>column.values
    cdef Py_ssize_t place = Py_SIZE(<object>column.rows)
    cdef Py_ssize_t start = Py_SIZE(values)
    cdef const char* text = line + field.value_at + 1
    cdef Py_ssize_t length = field.value_end - field.value_at - 2
    if start + length > INT32_MAX:
        raise MemoryError
    array.resize_smart(values, start + length)
    if memchr(text, c"\\", length) == NULL:
        memcpy(values.data.as_chars + start, text, length)
    else:
        length = unescape(text, length, STRING_ESCAPES, values.data.as_chars + start)
        array.resize_smart(values, start + length)
    array.resize_smart(<array.array>column.rows, place + 1)
    (<array.array>column.rows).data.as_uints[place] = row
    array.resize_smart(<array.array>column.offsets, place + 2)
    (<array.array>column.offsets).data.as_ints[place + 1] = <int>(start + length)
    return STRING_COST + length
