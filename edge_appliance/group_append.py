"""Append a group and encode it for the log, at the cost of no delivery but one that brings out a fault of ours.

A fault that ended the process would end it again as soon as the broker sends the same message again. So such a
delivery is rejected with its bytes, the traceback is in the journal, and the group goes on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edge_appliance.core.append import Appender
from edge_appliance.core.appended import GroupAppend
from edge_appliance.core.delivery import Delivery, DeliveryKey, LineError, Reason
from edge_appliance.core.segment import Segment

_log = logging.getLogger(__name__)


def append_group(
    appender: Appender, segment: Segment, deliveries: Sequence[Delivery], keys: Sequence[DeliveryKey | None]
) -> GroupAppend:
    """Append beyond the mark, and encode for the log.

    Sets `reject` of the deliveries that cannot be appended.
    """
    try:
        return appender.append_group(segment, deliveries, keys)
    except MemoryError:
        raise  # says nothing about the delivery
    except Exception:
        _log.exception("a group cannot be appended; it is tried again without what causes that")
        take_back(appender, segment)
    for delivery, key in zip(deliveries, keys, strict=True):
        try:
            appender.append_group(segment, [delivery], [key])
        except MemoryError:
            raise
        except Exception as error:  # whatever it is, it is this delivery's alone
            text = f"{type(error).__name__}: {error}"
            delivery.reject = LineError(0, 0, Reason.INTERNAL_ERROR, text, delivery.payload)
        take_back(appender, segment)
    return appender.append_group(segment, deliveries, keys)


def take_back(appender: Appender, segment: Segment) -> None:
    """Drop rows and definitions beyond the mark."""
    segment.rollback()
    appender.schema.rollback()
