"""How many elements a call of `range` or `generate_series` with constant arguments makes. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Final

from edge_appliance.core.query_words import Word

_UNIT_S: Final = {
    "nanosecond": 1e-9, "microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0,
    "day": 86400.0, "week": 604800.0, "month": 28 * 86400.0, "year": 365 * 86400.0,
}  # fmt: skip
"""The shortest each can be: more elements are counted than made, never fewer."""
_SHORT: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day", "ms": "millisecond", "us": "microsecond"}
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")


def series_length(arguments: Sequence[Sequence[Word]]) -> int | None:
    """Elements of a series, one more at most; None when the arguments do not say."""
    numbers = [_number(argument) for argument in arguments]
    if all(number is not None for number in numbers) and 1 <= len(numbers) <= 3:
        whole = [number for number in numbers if number is not None]
        first, last = (0, whole[0]) if len(whole) == 1 else whole[:2]
        return abs(last - first) // max(1, abs(whole[2]) if len(whole) == 3 else 1) + 1
    if len(arguments) != 3:
        return None
    first_s, last_s, step_s = _time(arguments[0]), _time(arguments[1]), _interval(arguments[2])
    if first_s is None or last_s is None or not step_s:
        return None
    return int(abs(last_s - first_s) / step_s) + 1


def _number(words: Sequence[Word]) -> int | None:
    signs = [word for word in words if word.kind == "sign"]
    digits = [word.value for word in words if word.kind == "number"]
    if len(digits) != 1 or not digits[0].isdigit() or len(signs) + 1 != len(words):
        return None
    if any(sign.value not in "+-" for sign in signs):
        return None
    return int(digits[0]) * (-1 if sum(sign.value == "-" for sign in signs) % 2 else 1)


def _time(words: Sequence[Word]) -> float | None:
    """`timestamp '…'`, `date '…'` or the text alone with a cast behind it, in seconds."""
    texts = [word.value for word in words if word.kind == "text"]
    others = {word.value for word in words if word.kind != "text"}
    if len(texts) != 1 or not others <= {"timestamp", "date", ":", "timestamptz"}:
        return None
    try:
        moment = dt.datetime.fromisoformat(texts[0])
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)).timestamp()


def _interval(words: Sequence[Word]) -> float | None:
    """`interval '1 hour'` or `interval '1' hour`, in seconds."""
    if not words or words[0].value != "interval":
        return None
    text = " ".join(word.value for word in words[1:]).lower()
    amounts = _AMOUNT.findall(text)
    total_s = 0.0
    for amount, unit in amounts:
        name = _SHORT.get(unit, unit.removesuffix("s"))
        if name not in _UNIT_S:
            return None
        total_s += float(amount) * _UNIT_S[name]
    return total_s if amounts and _AMOUNT.sub("", text).strip() == "" else None
