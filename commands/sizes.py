"""Sizes as people write them."""

from __future__ import annotations

import re

from mspc.ir.diagnostics import MspcError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30,
         "TI": 1 << 40}  # fmt: skip
"""Bytes in a unit of sizes."""


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
