# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# distutils: language = c
"""Parse and append, compiled: does what `append_reference` says, to the byte.

A line of a known series with known columns, which is nearly every line, is read in one pass over its bytes and goes
straight to the arrays of its table's tail and into the payload for the log. A bad line costs its message more. What
adds a name (a series, a column, a table) goes on to the reference, once per name. So does a delivery that is taken
whole or not at all.

The interpreter's lock is held throughout, and given up between lines of a large delivery, so that no thread waits
long for it.
"""

cimport cython
from cpython cimport array
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from cpython.object cimport PyObject, PyTypeObject, Py_SIZE
from cpython.ref cimport Py_CLEAR, Py_INCREF, Py_XDECREF
from libc.math cimport isinf
from libc.stdint cimport (
    INT32_MAX, INT64_MAX, INT64_MIN, UINT32_MAX, UINT64_MAX, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
)
from libc.string cimport memchr, memcmp, memcpy, memset

import array as _array_module  # noqa: F401 - its C interface is used
from collections import Counter

from edge_appliance.core import append_reference
from edge_appliance.core.appended import GroupAppend
from edge_appliance.core.columns import STRING_OVERHEAD_BYTES, TailColumn
from edge_appliance.core.delivery import (
    DIGEST_BYTES,
    MAX_ERRORS,
    RESERVED_COLUMNS,
    RESERVED_PREFIX,
    DeliveryResult,
    Kind,
    LineError,
    Reason,
)
from edge_appliance.core.line_dates import MAX_DATES, TOO_MANY_DATES
from edge_appliance.core.line_grammar import TOO_MANY_PARTS, show
from edge_appliance.core.line_protocol import PARSER_VERSION, Head, Line
from edge_appliance.core.line_split import MAX_PARTS, invalid_at, sample
from edge_appliance.core.line_values import NS_PER_UNIT, time_meaning
from edge_appliance.core.parts import DAY_NS
from edge_appliance.core.schema import check_kind
from edge_appliance.core.segment import ROW_BYTES, VALUE_BYTES
from edge_appliance.core.wal_record import encode_context, encode_definition

ctypedef Py_hash_t (*hashfunc_of_bytes)(const void*, Py_ssize_t)

cdef extern from "Python.h":
    ctypedef struct PyHash_FuncDef:
        hashfunc_of_bytes hash
    PyHash_FuncDef* PyHash_GetFuncDef()
    object call_new "((PyTypeObject*)&PyTuple_Type)->tp_new"(PyTypeObject* kind, object arguments, object keywords)
    double PyOS_string_to_double(const char*, char**, PyObject*) except? -1.0

cdef extern from *:
    void prefetch "__builtin_prefetch"(const void*) nogil

cdef int64_t ROW_COST = ROW_BYTES
cdef int64_t VALUE_COST = VALUE_BYTES
cdef int64_t STRING_COST = STRING_OVERHEAD_BYTES
cdef int64_t NS_PER_DAY = DAY_NS

include "kernel_text.pxi"
include "kernel_words.pxi"
include "kernel_index.pxi"
include "kernel_line.pxi"
include "kernel_tail.pxi"
include "kernel_log.pxi"
include "kernel_names.pxi"
include "kernel_delivery.pxi"
include "kernel_errors.pxi"
include "kernel_rows.pxi"
include "kernel_group.pxi"


class KernelAppender(append_reference.Appender):
    """The reference with its two entry points compiled."""

    def __init__(self, schema, limits=None):
        super().__init__(schema, limits)
        self._kernel = Kernel(self, self.limits)

    def append_group(self, segment, deliveries, keys):
        """Append all good lines of `deliveries` beyond the mark; `keys` are their delivery keys, one each."""
        return (<Kernel>self._kernel).append_group(segment, deliveries, keys)

    def _append_entries(self, segment, group, is_covered, done):
        (<Kernel>self._kernel).append_entries(segment, group, is_covered, done)

    def _new_heads(self):
        return Index()
