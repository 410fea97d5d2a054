"""What went wrong with the object store, in words for an operator, out of the client's long error text.

The text is one sentence and a dump of nested causes. Providers name their reason by a code in XML or JSON, the network
by the innermost cause. Only what neither has is left to the text's first line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_REASON: Final = 300
"""Characters of a reason that is not in the tables."""

_CODES: Final[dict[str, str]] = {
    "NoSuchBucket": "the bucket does not exist",
    "ContainerNotFound": "the container does not exist",
    "InvalidAccessKeyId": "the store does not know this key id",
    "SignatureDoesNotMatch": "the secret key does not fit the key id",
    "AuthenticationFailed": "the credentials are wrong",
    "InvalidAuthenticationInfo": "the credentials are wrong",
    "AccessDenied": "these credentials are not allowed to do this",
    "AuthorizationFailure": "these credentials are not allowed to do this",
    "AuthorizationPermissionMismatch": "these credentials are not allowed to do this",
    "AllAccessDisabled": "all access to this bucket is disabled",
    "AccountProblem": "there is a problem with the account",
    "ExpiredToken": "the credentials have expired",
    "TokenRefreshRequired": "the credentials have expired",
    "RequestTimeTooSkewed": "the clock of this host and that of the store differ too much",
    "AuthorizationHeaderMalformed": "the region is wrong",
    "PermanentRedirect": "the bucket is in another region, or at another endpoint",
    "SlowDown": "the store asks for fewer requests",
    "ServerBusy": "the store asks for fewer requests",
    "TooManyRequests": "the store asks for fewer requests",
    "XMinioStorageFull": "the store is full",
    "QuotaExceeded": "the store's quota is used up",
    "InsufficientStorage": "the store is full",
    "EntityTooLarge": "the store does not take objects of this size",
}
_CAUSES: Final[Sequence[tuple[str, str]]] = (
    (
        "invalid peer certificate: UnknownIssuer",
        "its certificate is of an authority that is not known here (store.ca_file)",
    ),
    ("UnknownIssuer", "its certificate is of an authority that is not known here (store.ca_file)"),
    ("NotValidForName", "its certificate is for another name"),
    ("CertNotValidForName", "its certificate is for another name"),
    ("invalid peer certificate: Expired", "its certificate has expired, or this host's clock is wrong"),
    ("NotValidYet", "its certificate is not valid yet: this host's clock is probably wrong"),
    ("CaUsedAsEndEntity", "its certificate is that of an authority"),
    ("InvalidContentType", "it does not speak TLS (is the endpoint http:// ?)"),
    ("corrupt message", "it does not speak TLS (is the endpoint http:// ?)"),
    ("BadScheme", "the endpoint is neither http:// nor https://"),
    ("dns error", "its name cannot be resolved"),
    ("ConnectionRefused", "the connection is refused, nobody listens there"),
    ("NetworkUnreachable", "there is no network"),
    ("HostUnreachable", "there is no way to this host"),
    ("ConnectionReset", "the connection broke"),
    ("BrokenPipe", "the connection broke"),
    ("IncompleteMessage", "the connection broke before the answer"),
    ("ConnectionAborted", "the connection broke"),
    ("TimedOut", "there is no answer in time"),
    ("Timeout", "there is no answer in time"),
    ("tcp connect error", "it cannot be reached"),
)
_STATUS: Final[dict[int, str]] = {
    401: "the credentials are wrong",
    403: "access is denied: credentials, rights or clock are wrong",
    404: "there is no such bucket or object",
    407: "the proxy wants a password",
    408: "there is no answer in time",
    429: "the store asks for fewer requests",
    503: "the store is overloaded or down (503)",
    507: "the store is full",
}

_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\"code\":\s*\"(\w+)\"")
_STATUS_CODE: Final = re.compile(r"status code: (\d{3})")


def reason_of(text: str) -> str:
    """The reason in words; never empty, never more than a line."""
    if (code := _CODE.search(text)) is not None and (words := _CODES.get(code[1] or code[2])):
        return words
    if "169.254.169.254" in text or "metadata.google.internal" in text:
        return "there are no credentials: none are configured, and no metadata service answers"
    for cause, words in _CAUSES:
        if cause in text:
            return words
    if (status := _STATUS_CODE.search(text)) is not None:
        number = int(status[1])
        named = f" ({code[1] or code[2]})" if code is not None else ""
        return _STATUS.get(number, f"it answers with status {number}") + named
    return _first_sentence(text)


def _first_sentence(text: str) -> str:
    line = text.split("\n", 1)[0].split("Debug source", 1)[0].strip().rstrip(".:-").strip()
    return line[:MAX_REASON] or "it says nothing about why"
