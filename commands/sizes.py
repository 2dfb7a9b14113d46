"""This module writes sizes, times and shares as people do."""

from __future__ import annotations

import re

from mspc.ir.diagnostics import MspcError
from mspc.ir.text.limits import MOST_RANKS, number_of

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30,
         "TI": 1 << 40}  # fmt: skip
"""Bytes in a unit of sizes."""
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
"""Seconds in a unit of times."""
LARGEST_SHARE = 100.0


def size_of(text: str, name: str, least: int = 1) -> int:
    """The bytes in `80GB`, `512MiB` or `1000`.

    Args:
        text: the size. name: of the option, for messages. least: bytes that it may be.

    Raises:
        MspcError: it is no size, or out of bounds.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]i?)?B?", text.strip(), re.ASCII)
    nbytes = float(found[1]) * UNITS[(found[2] or "").upper()] if found else -1.0
    if not least <= nbytes < 1 << 60:
        raise MspcError(f"{name} is {text!r}, not a size as in 80GB or 512MiB")
    return int(nbytes)


def numbers_of(text: str, mistake: str) -> tuple[int, ...]:
    """Return the different numbers in `8,16,64`. mistake: the message for other text. Raises MspcError."""
    found = [number_of(part, MOST_RANKS) for part in text.split(",")]
    if not all(found):
        raise MspcError(mistake)
    return tuple(number for number in dict.fromkeys(found) if number)


def seconds_of(text: str, name: str) -> float:
    """The seconds in `3ms`, `250 us` or `1.5s`.

    Args:
        text: the time. name: of the option, for messages.

    Raises:
        MspcError: it is no time.
    """
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,12})?)\s*(s|ms|us|ns)", text.strip(), re.ASCII)
    if found is None:
        raise MspcError(f"{name} is {text!r}, not a time as in 3ms or 250us")
    return float(found[1]) * SECONDS[found[2]]


def share_of(text: str, name: str) -> float:
    """The number in `5%` or `0.05`.

    Raises:
        MspcError: it is no share, or out of bounds.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,12})?)\s*(%?)", text.strip(), re.ASCII)
    share = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= share <= LARGEST_SHARE:
        raise MspcError(f"{name} is {text!r}, not a share as in 5% or 0.05")
    return share
