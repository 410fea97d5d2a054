# A group of deliveries to rows, errors and the payload for the log; and a logged group to rows.

@cython.final
cdef class Kernel(LineAppender):
    """Appends to the open segment, by way of the reference where names are added."""

    cdef Py_ssize_t payload_bytes
    cdef list added                 # definitions beyond the mark
    cdef dict readers               # of the segment

    def __init__(self, owner, limits):
        super().__init__(owner, limits)
        self.payload_bytes = limits.payload_bytes
        self.added = owner.schema.added

    # A group

    cdef object append_group(self, segment, deliveries, keys):
        cdef list results = []
        cdef bytes payload = b""
        cdef dict tables = segment.tables
        cdef Py_ssize_t known = len(tables)
        cdef Py_ssize_t savepoint = len(self.added)
        cdef Py_ssize_t number
        cdef Py_ssize_t count = len(deliveries)
        if len(keys) != count:
            raise ValueError(f"{count} deliveries, {len(keys)} keys")
        self._begin(segment)
        self.log.begin()
        self.is_replay = False
        self.is_covered = None
        self.non_finite = self.collisions = self.sanitised = 0
        try:
            for number in range(count):
                self._append_delivery(results, deliveries[number], keys[number])
                if number % DELIVERIES_PER_TURN == DELIVERIES_PER_TURN - 1:
                    with nogil:
                        pass
        finally:
            self._end()
        if self.log.entries:
            if len(tables) == known and len(self.added) == savepoint:
                payload = self.log.payload(None)
            else:
                payload = self.log.payload(self.owner._definitions(segment, known, savepoint))
        return GroupAppend(payload, results, self.log.lines, self.sanitised, self.non_finite, self.collisions)

    cdef int _begin(self, segment) except -1:
        segment.limit_origins()     # between groups: in one, a context has one number
        self.segment = segment
        self.readers = segment.readers
        self.noted = segment.touched
        self.touched = []
        self.call += 1

    cdef int _end(self) except -1:
        """Tell the buffers what was written to them, and hold on to none of it."""
        self._flush()
        self.touched = None
        self.segment = None
        self.readers = None
        self.noted = None
        self.place = None
        self.errors = None

    cdef int _append_delivery(self, list results, delivery, key) except -1:
        cdef bytes payload
        cdef const char* start
        cdef const char* end
        reject = delivery.reject
        if reject is not None:
            results.append(DeliveryResult(0, (reject,)))
            return 0
        payload = delivery.payload
        start = payload
        end = start + len(payload)
        if end - start > self.payload_bytes or not delivery.accept_partial:
            return self._append_by_reference(results, delivery, key)
        if end - start >= 3 and not memcmp(start, <const char*>BYTE_ORDER_MARK, 3):
            start += 3
        while end > start and (end - 1)[0] == 0:
            end -= 1
        if not is_ascii(start, end - start) and invalid_at(start[:end - start]) >= 0:
            return self._append_by_reference(results, delivery, key)
        if end - start != len(payload):
            self.sanitised += 1
        self._open_delivery(self._reader_of(delivery.origin), delivery)
        self._read_lines(start, end)
        self.log.end_delivery(
            self.arrival_ns, delivery.clock_unset, self._context_number(), ~self.crc, key
        )
        results.append(self._result())
        return 0

    cdef int _append_by_reference(self, list results, delivery, key) except -1:
        """A delivery that is taken whole or not at all, or that is no text."""
        cdef list entries = []
        cdef object group = GroupAppend()
        self._flush()
        self.owner._append_delivery(self.segment, group, entries, delivery, key)
        for entry in entries:
            self.place = (<Reader>self._reader_of(delivery.origin)).place
            for span in entry.spans:
                self.log.add_line(<bytes>span, <uint32_t>len(span))
            self.log.end_delivery(
                entry.arrival_ns, entry.clock_unset, self._context_number(), entry.times_crc, entry.key
            )
        results.extend(group.results)
        self.sanitised += group.sanitised
        self.non_finite += group.non_finite
        self.collisions += group.tag_collisions
        return 0

    cdef int _flush(self) except -1:
        for writer in self.touched:
            (<TailWriter>writer).flush()

    cdef Reader _reader_of(self, origin):
        cdef Reader reader = self.readers.get(origin)
        if reader is None:
            reader = Reader()
            reader.place = self._place_of(origin.database, origin.precision, origin.tags, origin.source)
            reader.first_ns = INT64_MIN if origin.min_time_ns is None else max(INT64_MIN, origin.min_time_ns)
            reader.max_future_ns = origin.max_future_ns
            self.readers[origin] = reader
            self.segment.origin_bytes += len(origin.label_prefix)
        return reader

    cdef Place _place_of(self, database, precision, route_tags, source):
        cdef tuple key = (database, precision, route_tags, source)
        cdef Place place = self.readers.get(key)
        if place is None:
            place = Place()
            place.database = database
            place.route_tags = route_tags
            place.heads = self.owner._heads(self.segment, database, route_tags)
            place.unit_ns = NS_PER_UNIT.get(precision, 0)
            place.precision = precision
            place.logged = encode_context(key)
            self.readers[key] = place
            self.segment.origin_bytes += len(place.logged)
        return place

    cdef uint32_t _context_number(self) except? 0:
        """The number by which this group's payload names the place in work."""
        cdef Place place = self.place
        if self.log.lines == self.log.lines_before:
            return 0    # nothing will be logged
        if place.logged_in != self.call:
            place.number = self.log.add_context(place.logged)
            place.logged_in = self.call
        return place.number

    cdef int _open_delivery(self, Reader reader, delivery) except -1:
        cdef object last_ns = None
        self.place = reader.place
        self.arrival_ns = delivery.arrival_ns
        self.first_ns = reader.first_ns
        self.last_ns = INT64_MAX
        if reader.max_future_ns is not None and not delivery.clock_unset:
            last_ns = delivery.arrival_ns + reader.max_future_ns
            self.last_ns = min(INT64_MAX, last_ns)
        self._open_lines()

    cdef void _open_lines(self):
        self.delivery_stamp += 1
        self.errors = None
        self.further = None
        self.dates = None
        self.crc = UINT32_MAX
        self.lines = self.rows = self.covered = 0

    cdef object _result(self):
        if self.errors is not None:
            if self.further is not None:
                return DeliveryResult(self.rows, self.errors, "", self.further)
            return DeliveryResult(self.rows, self.errors)
        if self.rows == 1:
            return ONE_ROW
        result = RESULTS.get(self.rows)
        if result is None:
            result = DeliveryResult(self.rows)
            if self.rows < MOST_RESULTS:
                RESULTS[self.rows] = result
        return result

    # A logged group

    cdef int append_entries(self, segment, group, is_covered, done) except -1:
        """Append logged deliveries: grammar only, no limits, borders or decisions."""
        cdef Py_ssize_t number
        cdef Py_ssize_t at = 0
        cdef array.array arrivals = group.arrivals
        cdef array.array places = group.places
        cdef array.array crcs = group.times_crcs
        cdef array.array counts = group.counts
        cdef array.array lengths = group.lengths
        cdef bytes text = group.text
        cdef const char* line = text
        cdef const char* end = line + len(text)
        cdef list contexts = []
        if len(places) != len(arrivals) or len(crcs) != len(arrivals) or len(counts) != len(arrivals):
            raise ValueError("columns of a logged group differ in length")
        self._begin(segment)
        try:
            for database, precision, route_tags, source in group.contexts:
                contexts.append(self._place_of(database, precision, route_tags, source))
            self.first_ns = INT64_MIN
            self.last_ns = INT64_MAX
            self.is_replay = True
            self.is_covered = is_covered
            self.has_nul = True     # or not: looked for in each line
            for number in range(len(arrivals)):
                if counts.data.as_uints[number] > len(lengths) - at or places.data.as_uints[number] >= len(contexts):
                    raise ValueError("a logged group contradicts itself")
                self.place = contexts[places.data.as_uints[number]]
                self.arrival_ns = arrivals.data.as_longlongs[number]
                line = self._append_entry(
                    line, end, lengths.data.as_uints + at, counts.data.as_uints[number], crcs.data.as_uints[number], done
                )
                at += counts.data.as_uints[number]
                if number % DELIVERIES_PER_TURN == DELIVERIES_PER_TURN - 1:
                    with nogil:
                        pass
        finally:
            self._end()
        return 0

    cdef const char* _append_entry(
        self, const char* line, const char* end, const uint32_t* lengths, uint32_t count, uint32_t times_crc, done
    ) except NULL:
        """Append one logged delivery of `count` lines, which lie behind each other from `line` on; where they end."""
        cdef uint32_t number
        cdef LineAhead ahead
        cdef Py_ssize_t rows
        cdef Py_ssize_t failed = 0
        cdef Py_ssize_t told = len(done.mismatches)
        cdef bint is_same = True
        self._open_lines()
        for number in range(count):
            if lengths[number] > end - line:
                raise ValueError("a logged group has less text than lines")
            rows = self.rows
            if is_ascii(line, lengths[number]) or invalid_at(line[:lengths[number]]) < 0:
                ahead.start = line
                ahead.end = line + lengths[number]
                ahead.number = number + 1
                ahead.lead = 0
                self._look_ahead(&ahead)
                self._append_line(&ahead)
                if self.errors is not None:
                    if self.rows > rows:
                        failed += 1
                        done.mismatches.append(f"{self.errors[0].reason}: {self.errors[0].message}")
                    self.errors = None
            is_same = is_same and self.rows > rows
            line += lengths[number]
        if not is_same or <uint32_t>~self.crc != times_crc:
            done.mismatches.insert(told, f"{count} logged lines gave {self.rows} rows or other times")
        done.covered += self.covered
        done.lines += self.rows - self.covered - failed
        return line
