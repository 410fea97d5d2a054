# What names and values of a line may be: the same reasons, in the same order, as `line_names`.


cdef tuple name_fault(LineReader reader, tag_names, bint has_head, limits):
    """The first reason against the names of the line, as `line_names.check_names` finds it; None without one.

    Without `has_head`, the head is that of a known series, and nothing can be said against it.
    """
    cdef list tag_keys = []
    cdef list field_keys = []
    cdef Py_ssize_t at
    cdef Tag* tag
    cdef Field* field
    if has_head:
        if reader.measurement_end >= 5 and not memcmp(reader.line, b"_edge", 5):
            name = unescaped(reader.line, reader.measurement_end, MEASUREMENT_ESCAPES).decode()
            text = f"measurement {show(name)}: names in {RESERVED_PREFIX} are reserved"
            return Reason.RESERVED_NAME, 0, text
        for at in range(reader.tag_count):
            tag = &reader.tags[at]
            name = unescaped(reader.line + tag.key_at, tag.key_end - tag.key_at, KEY_ESCAPES).decode()
            tag_keys.append((name, tag.key_at))
    for at in range(reader.field_count):
        field = &reader.fields[at]
        name = unescaped(reader.line + field.key_at, field.key_end - field.key_at, KEY_ESCAPES).decode()
        field_keys.append((name, field.key_at))
    for name, place in tag_keys + field_keys:
        if name in RESERVED_COLUMNS or name.startswith(RESERVED_PREFIX):
            return Reason.RESERVED_NAME, place, f"the name {show(name)} is reserved"
    repeated = first_repeated(tag_keys)
    if repeated is not None:
        return Reason.DUPLICATE_TAG, repeated[1], f"tag {show(repeated[0])} occurs twice"
    repeated = first_repeated(field_keys)
    if repeated is not None:
        return Reason.DUPLICATE_FIELD, repeated[1], f"field {show(repeated[0])} occurs twice"
    for name, place in field_keys:
        if name in tag_names:
            return Reason.TAG_FIELD_COLLISION, place, f"{show(name)} is a tag and a field of the line"
    return length_fault(reader, tag_keys, field_keys, has_head, limits)

cdef tuple length_fault(LineReader reader, list tag_keys, list field_keys, bint has_head, limits):
    cdef Py_ssize_t at
    cdef Py_ssize_t most
    names = tag_keys + field_keys
    if has_head:
        names = [(unescaped(reader.line, reader.measurement_end, MEASUREMENT_ESCAPES).decode(), 0), *names]
    most = limits.name_bytes
    for name, place in names:
        if len(name.encode()) > most:
            return Reason.NAME_TOO_LONG, place, f"the name {show(name)} has more than {most} bytes"
    most = limits.tag_value_bytes
    for at in range(reader.tag_count if has_head else 0):
        if length_of(reader, reader.tags[at].value_at, reader.tags[at].value_end, KEY_ESCAPES) > most:
            text = f"the value of tag {show(tag_keys[at][0])} has more than {most} bytes"
            return Reason.VALUE_TOO_LONG, reader.tags[at].value_at, text
    most = limits.string_bytes
    for at in range(reader.field_count):
        if (
            reader.fields[at].form == KIND_STRING
            and length_of(reader, reader.fields[at].value_at + 1, reader.fields[at].value_end - 1, STRING_ESCAPES) > most
        ):
            text = f"the string of field {show(field_keys[at][0])} has more than {most} bytes"
            return Reason.VALUE_TOO_LONG, reader.fields[at].value_at, text
    return None

cdef Py_ssize_t length_of(LineReader reader, uint32_t start, uint32_t end, int escapes):
    return len(unescaped(reader.line + start, end - start, escapes))


cdef object first_repeated(list keys):
    """The first (name, place) whose name stood before, or None."""
    seen = set()
    for key in keys:
        if key[0] in seen:
            return key
        seen.add(key[0])
    return None
