"""Parse and append: the compiled kernel where it was built, else the reference. Nobody else knows which one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_appliance.core import append_reference
from edge_appliance.core.append_reference import IsCovered

__all__ = ["KERNEL", "Appender", "IsCovered"]


def _choose() -> tuple[str, type[append_reference.Appender]]:
    try:
        from edge_appliance.core.kernel import KernelAppender  # noqa: PLC0415 - it need not be there
    except ImportError:
        return "reference", append_reference.Appender
    return "compiled", KernelAppender


if TYPE_CHECKING:
    from edge_appliance.core.append_reference import Appender

    KERNEL: str
    """Which one runs: `compiled` or `reference`."""
else:
    KERNEL, Appender = _choose()
