"""Every error the appliance raises on purpose.

    EdgeError                     never raised directly
    ├── ConfigError               the configuration has faults (exit 78)
    ├── PathError                 a needed path cannot be created or locked (exit 73)
    ├── DiskError                 the operating system refused a durable write
    ├── FormatError               stored bytes are not what their format says
    │   └── NewerFormatError      stored bytes are of a later release
    ├── CatalogError              the catalog could not be read or written
    ├── StoreError                the object store refused or did not answer
    └── QueryError                a query was refused or did not finish

Commands add CommandError (`cli/command.py`), which carries an exit code of its own.
Outcomes that are expected (a rejected line, a torn tail, a missing object) are results, not errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


class EdgeError(Exception):
    """Base of all errors of the appliance; never raised directly."""


@dataclass(frozen=True, slots=True)
class ConfigFault:
    """One fault of the configuration: where, which key, and what to do."""

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.message}" if self.key else f"{where}: {self.message}"


class ConfigError(EdgeError):
    """Raised when the configuration has faults; it carries all of them."""

    def __init__(self, faults: Sequence[ConfigFault]) -> None:
        super().__init__("\n".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class PathError(EdgeError):
    """Raised when a path the appliance needs cannot be created, opened or locked."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class DiskError(EdgeError):
    """Raised when a write, sync, rename or unlink failed; the outcome on the disk is unknown."""

    def __init__(self, operation: str, path: str, cause: OSError) -> None:
        super().__init__(f"{operation} {path}: {cause.strerror or cause}")
        self.operation = operation
        self.path = path
        self.errno = cause.errno


class FormatError(EdgeError):
    """Raised when stored bytes do not follow their format."""

    def __init__(self, what: str, offset: int, reason: str) -> None:
        super().__init__(f"{what} at byte {offset}: {reason}")
        self.what = what
        self.offset = offset
        self.reason = reason


class NewerFormatError(FormatError):
    """Raised when stored bytes were written by a later release than this one."""


class CatalogError(EdgeError):
    """Raised when the catalog could not be read or written; the outcome is unknown."""


class StoreError(EdgeError):
    """Raised when the object store refused a request or did not answer it."""

    def __init__(self, operation: str, key: str, reason: str) -> None:
        super().__init__(f"{operation} {key}: {reason}")
        self.operation = operation
        self.key = key
        self.reason = reason


QueryFault = Literal["invalid", "not_found", "exhausted", "timeout", "too_large", "unavailable"]


class QueryError(EdgeError):
    """Raised when a query is refused or does not finish; `fault` says which, for the status code."""

    def __init__(self, fault: QueryFault, message: str) -> None:
        super().__init__(message)
        self.fault: QueryFault = fault
