# cython: language_level=3, boundscheck=False, wraparound=False
"""Ordinary PUBLISH packets cut from a byte stream, compiled. `mqtt_packets` states the format, and reads all others."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyTypeObject

cdef extern from "Python.h":
    object call_new "((PyTypeObject*)&PyTuple_Type)->tp_new"(PyTypeObject* kind, object arguments, object keywords)

cdef enum:
    PUBLISH = 0x30
    QOS1 = 0x02
    QOS2 = 0x04
    LENGTH_BYTES = 4


def cut_publishes(
    bytes data, Py_ssize_t start, bint has_properties, Py_ssize_t max_packet_bytes, type publish, list packets
):
    """Append the whole PUBLISH packets that begin at `start`, one behind the other, each as a `publish`.

    Returns where the first packet begins that is none, is not whole, or has anything to be judged: it is too large, of
    QoS 2, without a topic, without an id at QoS 1, or shorter than its parts.
    """
    cdef const unsigned char* base = <const unsigned char*><const char*>data
    cdef const unsigned char* end = base + len(data)
    cdef const unsigned char* packet = base + start
    cdef const unsigned char* at
    cdef const unsigned char* stop
    cdef const unsigned char* topic
    cdef Py_ssize_t length
    cdef Py_ssize_t topic_bytes
    cdef int packet_id
    cdef dict keywords = {}
    while packet < end and packet[0] & 0xF0 == PUBLISH and not packet[0] & QOS2:
        at = read_length(packet + 1, end, &length)
        if at == NULL or length > end - at or at + length - packet > max_packet_bytes:
            break
        stop = at + length
        if stop - at < 2:
            break
        topic_bytes = at[0] << 8 | at[1]
        topic = at + 2
        packet_id = 0
        if topic_bytes == 0 or topic_bytes > stop - topic:
            break
        at = topic + topic_bytes
        if packet[0] & QOS1:
            if stop - at < 2:
                break
            packet_id = at[0] << 8 | at[1]
            if packet_id == 0:
                break
            at += 2
        if has_properties:
            at = read_length(at, stop, &length)
            if at == NULL or length > stop - at:
                break
            at += length
        parts = (
            packet[0] & 0x0F,
            PyBytes_FromStringAndSize(<const char*>topic, topic_bytes),
            packet_id,
            PyBytes_FromStringAndSize(<const char*>at, stop - at),
            0,
        )
        packets.append(call_new(<PyTypeObject*>publish, (parts,), keywords))
        packet = stop
    return packet - base


cdef inline const unsigned char* read_length(
    const unsigned char* at, const unsigned char* end, Py_ssize_t* length
) noexcept nogil:
    """Read a number of 1 to 4 bytes; where it ends, or NULL when it does not before `end`."""
    cdef int number
    length[0] = 0
    for number in range(LENGTH_BYTES):
        if at == end:
            return NULL
        length[0] |= <Py_ssize_t>(at[0] & 0x7F) << 7 * number
        at += 1
        if not (at - 1)[0] & 0x80:
            return at
    return NULL
