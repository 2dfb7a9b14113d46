"""Machines described by files: TOML with the rates that `Machine` has.

    name = "two hosts"
    memory = 3.2e12                 # bytes per second that an operator reads and writes
    kernel = 1.5e-6                 # seconds from one small kernel to the next
    other_products = 50e12          # operations per second of products of element types that are not listed
    [products]
    Float32 = 300e12
    [link]
    latency = 12e-6                 # seconds of a collective of no bytes
    bandwidth = 340e9               # bytes per second that a rank sends
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mspc.analysis.machine import Link, Machine
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_toml
from mspc.ir.files.regular import check_regular
from mspc.ir.files.whole import reason_of, shown_path
from mspc.ir.nearest import did_you_mean

LARGEST = 1 << 20
"""Bytes of a file."""
RATES, LINK = ("memory", "kernel", "other_products"), ("latency", "bandwidth")
KEYS = ("name", *RATES, "products", "link")


def read_machine(path: Path) -> Machine:
    """The machine that a file describes.

    Raises:
        MspcError: there is no such file, it is no TOML, or a rate is missing or impossible.
    """
    shown = shown_path(path)
    try:
        check_regular(path, LARGEST)
        found = parsed_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MspcError(f"there is no machine file {shown!r}", kind=ValueError) from None
    except OSError as error:
        raise MspcError(f"cannot read the machine file {shown}: {reason_of(error)}") from None
    except ValueError as error:
        raise MspcError(f"{shown} is no TOML file: {error}", kind=ValueError) from None
    for key in found:
        if key not in KEYS:
            raise MspcError(f"{shown}: there is no {key!r} of a machine", notes=did_you_mean(key, KEYS))
    products = _table(shown, found, "products")
    link = _table(shown, found, "link")
    for key in link:
        if key not in LINK:
            raise MspcError(f"{shown}: there is no {key!r} of a link", notes=did_you_mean(key, LINK))
    return Machine(
        name=str(found.get("name", path.stem)),
        products=MappingProxyType({str(key): _rate(shown, products, key, "products.") for key in products}),
        other_products=_rate(shown, found, "other_products"),
        memory=_rate(shown, found, "memory"),
        kernel=_rate(shown, found, "kernel"),
        link=Link(_rate(shown, link, "latency", "link."), _rate(shown, link, "bandwidth", "link.")),
    )


def _table(shown: str, found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = found.get(key)
    if not isinstance(table, dict):
        raise MspcError(f"{shown}: {'there is no' if table is None else 'it has no'} table [{key}]")
    return table  # pyright: ignore[reportUnknownVariableType]  # of strings, as all of TOML


def _rate(shown: str, found: Mapping[str, Any], key: str, table: str = "") -> float:
    """A number above 0. Raises MspcError."""
    if key not in found:
        raise MspcError(f"{shown}: {table}{key} is missing")
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise MspcError(f"{shown}: {table}{key} is {value!r}, not a number above 0")
    return float(value)
