# Words to values: the same forms and ranges as `line_values`.

cdef enum:
    # As `delivery.Kind`, then the forms that are no value of a column.
    KIND_TAG = 0
    KIND_FLOAT = 1
    KIND_INT = 2
    KIND_UINT = 3
    KIND_BOOL = 4
    KIND_STRING = 5
    FORM_NO_VALUE = 6
    FORM_OUT_OF_RANGE = 7
    FORM_BAD = 8

cdef double POWERS_OF_TEN[23]
cdef int _power
POWERS_OF_TEN[0] = 1.0
for _power in range(1, 23):
    POWERS_OF_TEN[_power] = POWERS_OF_TEN[_power - 1] * 10.0

cdef enum:
    EXACT_DIGITS = 19           # as many always fit into 64 bits
    HARMLESS_DIGITS = 18        # as many always fit with a sign
    SHORT_DIGITS = 15           # as many are always below 2**53
    SHORT_WORD_BYTES = 64


cdef inline bint is_digit(char byte) noexcept nogil:
    return <unsigned char>(byte - c"0") < 10


cdef const char* read_short_number(const char* at, const char* end, int* form, uint64_t* bits) noexcept nogil:
    """Read a number of few digits that ends where a field does; where that is, or NULL for any other word.

    Nearly every value is one. `read_word` gives the same for it, after another look for its end.
    """
    cdef bint is_negative = at[0] == c"-"
    cdef const char* start
    cdef const char* point = NULL
    cdef uint64_t digits = 0
    cdef Py_ssize_t count
    cdef double value
    at += is_negative
    start = at
    while at < end:
        if is_digit(at[0]):
            digits = digits * 10 + <uint64_t>(at[0] - c"0")
        elif at[0] == c"." and point == NULL:
            point = at
        else:
            break
        at += 1
    count = at - start - (point != NULL)
    if count < 1 or count > SHORT_DIGITS:
        return NULL
    if at == end or at[0] == c"," or at[0] == c" ":
        value = <double>digits / POWERS_OF_TEN[at - point - 1 if point != NULL else 0]
        if is_negative:
            value = -value
        memcpy(bits, &value, 8)
        form[0] = KIND_FLOAT
        return at
    if point != NULL or at[0] != c"i" or (at + 1 < end and at[1] != c"," and at[1] != c" "):
        return NULL
    bits[0] = 0 - digits if is_negative else digits
    form[0] = KIND_INT
    return at + 1


cdef int read_word(const char* word, Py_ssize_t length, uint64_t* bits) except -1:
    """Form of an unquoted field value; its value goes into `bits`, a float as its IEEE 754 bits."""
    cdef char last = word[length - 1]
    cdef int form
    if is_digit(last) or last == c".":
        form = read_float(word, length, bits)
        return form
    if last == c"i":
        return read_integer(word, length - 1, KIND_INT, bits)
    if last == c"u":
        return read_integer(word, length - 1, KIND_UINT, bits)
    form = read_bool(word, length)
    if form >= 0:
        bits[0] = form
        return KIND_BOOL
    return FORM_NO_VALUE if is_no_value(word, length) else FORM_BAD


cdef int read_bool(const char* word, Py_ssize_t length) noexcept nogil:
    """1, 0, or -1 for a word that is no boolean."""
    if length == 1:
        if word[0] == c"t" or word[0] == c"T":
            return 1
        return 0 if word[0] == c"f" or word[0] == c"F" else -1
    if length == 4 and (not memcmp(word, b"true", 4) or not memcmp(word, b"True", 4) or not memcmp(word, b"TRUE", 4)):
        return 1
    if length == 5 and (
        not memcmp(word, b"false", 5) or not memcmp(word, b"False", 5) or not memcmp(word, b"FALSE", 5)
    ):
        return 0
    return -1


cdef bint is_no_value(const char* word, Py_ssize_t length) noexcept nogil:
    """Whether the word is one of nan, inf and infinity, in any case and with any sign."""
    if word[0] == c"+" or word[0] == c"-":
        word += 1
        length -= 1
    if length == 3:
        return is_word(word, b"nan", 3) or is_word(word, b"inf", 3)
    return length == 8 and is_word(word, b"infinity", 8)


cdef bint is_word(const char* word, const char* lower, Py_ssize_t length) noexcept nogil:
    """Whether a text is the word `lower` of small letters, in any case of ASCII, whatever the locale."""
    cdef Py_ssize_t at
    for at in range(length):
        if (word[at] | 0x20) != lower[at]:
            return False
    return True


cdef int read_integer(const char* word, Py_ssize_t length, int kind, uint64_t* bits) noexcept nogil:
    """Form of a word of digits without its suffix, for an int with a sign before them; and its value."""
    cdef bint is_negative = length > 0 and word[0] == c"-"
    cdef const char* at = word + is_negative
    cdef const char* end = word + length
    cdef const char* harmless = at + HARMLESS_DIGITS
    cdef uint64_t value = 0
    cdef uint64_t digit
    cdef uint64_t limit
    if at >= end or (is_negative and kind == KIND_UINT):
        return FORM_BAD
    if kind == KIND_UINT:
        limit = UINT64_MAX
    else:
        limit = <uint64_t>INT64_MAX + is_negative
    while at < end:
        digit = <unsigned char>(at[0] - c"0")
        if digit > 9:
            return FORM_BAD
        if at >= harmless and value > (limit - digit) // 10:
            return FORM_OUT_OF_RANGE if all_digits(at, end) else FORM_BAD
        value = value * 10 + digit
        at += 1
    bits[0] = 0 - value if is_negative else value
    return kind


cdef bint all_digits(const char* at, const char* end) noexcept nogil:
    while at < end:
        if not is_digit(at[0]):
            return False
        at += 1
    return True


cdef int read_float(const char* word, Py_ssize_t length, uint64_t* bits) except -1:
    """Form of a word, which ends in a digit or a point; the value is the one that `float()` gives.

    A short decimal is one exact product or quotient: an integer below 2**53 and a power of ten up to 10**22 are
    floats without an error, and one operation rounds once (Clinger, How to read floating point numbers accurately,
    PLDI 1990). All others go to Python's own conversion.
    """
    cdef const char* at = word
    cdef const char* end = word + length
    cdef bint is_negative = at[0] == c"-"
    cdef uint64_t digits = 0
    cdef Py_ssize_t count = 0       # digits behind leading zeros
    cdef Py_ssize_t seen = 0        # all digits
    cdef Py_ssize_t decimals = 0
    cdef Py_ssize_t exponent = 0
    cdef bint has_exponent = False
    cdef double value
    at += is_negative
    while at < end and is_digit(at[0]):
        if count or at[0] != c"0":
            count += 1
            if count <= EXACT_DIGITS:
                digits = digits * 10 + <uint64_t>(at[0] - c"0")
        seen += 1
        at += 1
    if at < end and at[0] == c".":
        at += 1
        while at < end and is_digit(at[0]):
            if count or at[0] != c"0":
                count += 1
                if count <= EXACT_DIGITS:
                    digits = digits * 10 + <uint64_t>(at[0] - c"0")
            decimals += 1
            seen += 1
            at += 1
    if seen == 0:
        return FORM_BAD
    if at < end:
        has_exponent = True
        if at[0] != c"e" and at[0] != c"E":
            return FORM_BAD
        at += 1
        if at < end and (at[0] == c"+" or at[0] == c"-"):
            at += 1
        if at == end or not all_digits(at, end):
            return FORM_BAD
    if not has_exponent and count <= EXACT_DIGITS and digits <= (1ULL << 53) and decimals <= 22:
        value = <double>digits / POWERS_OF_TEN[decimals]
        if is_negative:
            value = -value
        memcpy(bits, &value, 8)
        return KIND_FLOAT
    return convert_float(word, length, bits)


cdef int convert_float(const char* word, Py_ssize_t length, uint64_t* bits) except -1:
    """A word of the right form by Python's conversion."""
    cdef char short_word[SHORT_WORD_BYTES]
    cdef bytes long_word
    cdef const char* text
    cdef double value
    if length < SHORT_WORD_BYTES:
        memcpy(short_word, word, length)
        short_word[length] = 0
        text = short_word
    else:
        long_word = word[:length]
        text = long_word
    value = PyOS_string_to_double(text, NULL, NULL)
    if isinf(value):
        return FORM_OUT_OF_RANGE
    memcpy(bits, &value, 8)
    return KIND_FLOAT


cdef bint scale_time(int64_t stated, int64_t unit_ns, int64_t* time_ns) noexcept nogil:
    """Scale a stated time to ns; a unit of 0 goes by the magnitude. False when 64 bits do not hold it."""
    cdef uint64_t magnitude = <uint64_t>stated if stated >= 0 else 0 - <uint64_t>stated
    if unit_ns == 0:
        if magnitude < 5_000_000_000ULL:
            unit_ns = 1_000_000_000
        elif magnitude < 5_000_000_000_000ULL:
            unit_ns = 1_000_000
        elif magnitude < 5_000_000_000_000_000ULL:
            unit_ns = 1_000
        else:
            unit_ns = 1
    # The largest magnitude below is that of the smallest value, too, unless its unit is 1: then it always fits.
    if unit_ns > 1 and magnitude > <uint64_t>(INT64_MAX // unit_ns):
        return False
    time_ns[0] = stated * unit_ns
    return True
