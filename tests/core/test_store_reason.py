"""Long error texts of the client become one line that an operator understands."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_appliance.core.store_reason import MAX_REASON, reason_of

HEAD = "Generic S3 error: Error performing PUT http://store:9000/plant/k in 51ms, after 1 retries - "


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{HEAD}status code: 404 Not Found: <Error><Code>NoSuchBucket</Code></Error>", "the bucket does not exist"),
        (f"{HEAD}status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>", "the clock of this host"),
        (f"{HEAD}status code: 403 Forbidden: ", "access is denied"),
        (f"{HEAD}status code: 400 Bad Request: <Code>Odd</Code>", "it answers with status 400 (Odd)"),
        (f"{HEAD}status code: 503 Slow Down: ", "the store is overloaded or down (503)"),
        (f'{HEAD}HTTP error\nDebug source:\n"dns error", TimedOut', "its name cannot be resolved"),
        (
            f"{HEAD}HTTP error\nDebug: retry_timeout: 5s, code: 111, kind: ConnectionRefused",
            "the connection is refused",
        ),
        (f"{HEAD}HTTP error\nDebug: kind: Timeout,", "there is no answer in time"),
        (f"{HEAD}HTTP error\nDebug: invalid peer certificate: UnknownIssuer", "its certificate is of an authority"),
        (f"{HEAD}HTTP error\nGET http://169.254.169.254/latest", "there are no credentials"),
        ("Something new.\nDebug source:\nx", "Something new"),
        ("", "it says nothing about why"),
    ],
)
def test_reasons(text: str, expected: str) -> None:
    """Codes win over causes, causes over the status, and only what is unknown is quoted."""
    assert reason_of(text).startswith(expected)


@given(st.text())
def test_any_text_gives_one_short_line(text: str) -> None:
    """Whatever the client says, the reason is one line of limited length and never empty."""
    reason = reason_of(text)
    assert reason.strip()
    assert "\n" not in reason
    assert len(reason) <= MAX_REASON + 100
