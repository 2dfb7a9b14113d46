"""Machines in files: TOML with the rates that `Machine` has.

    name = "two hosts"
    device = "GPU"                  # target of programs; "CPU" for NumPy
    source = "measured in May"      # origin of the figures
    doubts = ["links: ..."]         # reasons not to believe them, if `mspc calibrate` has found any
    memory = 3.2e12                 # bytes per second that an operator reads and writes
    kernel = 1.5e-6                 # seconds from one small kernel to the next
    other_products = 50e12          # operations per second of matmuls of element types that are not listed
    ranks_per_host = 8
    capacity = 80000000000          # bytes of a rank's memory
    [products]                      # also [convolutions], [attention], if they have separate rates
    Float32 = [[1e9, 20e12], [1e11, 50e12]]
    TF32 = [[1e9, 90e12], [1e11, 300e12]]   # of Float32 if a program lets GPUs round it (`matmul_allow_tf32`)
    [traffic]                       # of kinds of operators with bytes per second other than `memory`
    column_sums = 2.5e12
    [link]                          # between ranks of one host
    latency = 12e-6                 # seconds of a collective of no bytes between two ranks
    hop = 1e-6                      # seconds that every further rank adds
    bandwidth = 340e9               # bytes per second that a rank sends
    [link.AlltoAll]                 # of one collective, if it differs
    latency = 20e-6
    bandwidth = 200e9
    [network]                       # between hosts, as [link]; bandwidth of one rank's card

A rate is one number, or a list of amounts (bytes, operations) with the rate at each, interpolated in between. In files
of earlier versions, with "products of Float32 rounded to TF32" in `source`, rates of Float32 are those of TF32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from mspc.analysis.cost.machine import (  # fmt: skip
    ALONE,
    COLLECTIVES,
    H200,
    KNOWN_MACHINES,
    LIKE,
    NVFP4,
    PRODUCTS,
    TF32,
    TRAFFIC,
    UNROUNDED,
    Link,
    Machine,
    Rate,
)
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path, write_atomically
from mspc.ir.files.parsing import check_keys, quoted, read_toml, table_in
from mspc.ir.types import DTYPES

LARGEST = 1 << 20
"""Maximum size of a machine file in bytes."""
ROUNDED = "products of Float32 rounded to TF32"
"""Marker in `source` of a file whose Float32 rates were measured with matmuls rounded to TF32."""
WORK = (PRODUCTS, *LIKE, *ALONE)
LINK = ("latency", "bandwidth", "hop")
KEYS = ("name", "device", "source", "doubts", "memory", "kernel", "other_products", "ranks_per_host", "capacity", *WORK,
        "traffic", "link", "network")  # fmt: skip


def machine_of(text: str) -> Machine:
    """Return a machine by its name in `KNOWN_MACHINES`, or by its file; `H200` for "". Raise MspcError as
    `read_machine` does."""
    if not text:
        return H200
    if text.lower() in KNOWN_MACHINES:
        return KNOWN_MACHINES[text.lower()]
    path = Path(text)
    if not path.suffix and not path.exists():
        known = list(KNOWN_MACHINES)
        notes = [*did_you_mean(text, known), f"machines that come along: {', '.join(known)}"]
        raise MspcError(f"there is no machine {text!r}, nor a file of that name", kind=ValueError, notes=notes)
    return read_machine(path)


def read_machine(path: Path) -> Machine:
    """Return the machine that a file describes.

    Raises:
        MspcError: if there is no such file, it is no TOML, or a rate is missing or impossible.
    """
    return _MachineFileReader(shown_path(path)).machine(read_toml(path, "machine file", LARGEST), path.stem)


class _MachineFileReader:
    """Reader of one file; the name of the file is in every message."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def machine(self, found: Mapping[str, Any], name: str) -> Machine:
        check_keys(self.shown, found, KEYS, "a machine")
        device = found.get("device", "GPU")
        if device not in ("GPU", "CPU"):
            raise MspcError(f'{self.shown}: device is {device!r}, not "GPU" or "CPU"')
        per_host = found.get("ranks_per_host", 0)
        if not isinstance(per_host, int) or isinstance(per_host, bool) or not 0 <= per_host < 1 << 20:
            raise MspcError(f"{self.shown}: ranks_per_host is {per_host!r}, not a number of ranks")
        capacity = found.get("capacity", 0)
        if not isinstance(capacity, int) or isinstance(capacity, bool) or not 0 <= capacity < 1 << 50:
            raise MspcError(f"{self.shown}: capacity is {capacity!r}, not a number of bytes")
        if per_host and "network" not in found:
            raise MspcError(f"{self.shown}: there are ranks_per_host, and no table [network] of links between hosts")
        return Machine(
            name=str(found.get("name", name)),
            device=device,
            work=self._every_work(found),
            other_products=self._rate(found, "other_products"),
            memory=self._rate(found, "memory"),
            kernel=self._number(found, "kernel"),
            link=self._link(found, "link"),
            ranks_per_host=per_host,
            network=self._link(found, "network") if "network" in found else None,
            source=str(found.get("source", "")).strip(),
            doubts=self._doubts(found),
            traffic=self._traffic(found) if "traffic" in found else {},
            capacity=capacity,
        )

    def _doubts(self, found: Mapping[str, Any]) -> tuple[str, ...]:
        value = found.get("doubts", [])
        entries = cast("list[Any]", value) if isinstance(value, list) else None
        if entries is None or not all(isinstance(entry, str) for entry in entries):
            raise MspcError(f"{self.shown}: doubts is {value!r}, not a list of texts")
        return tuple(entries)

    def _every_work(self, found: Mapping[str, Any]) -> Mapping[str, Mapping[str, Rate]]:
        """Return the rates of all kinds of work."""
        work = {kind: self._work(found, kind) for kind in WORK if kind in found or kind == PRODUCTS}
        if ROUNDED not in str(found.get("source", "")) or any(TF32 in rates for rates in work.values()):
            return work
        return {kind: rates if kind in ALONE else _called_rounded(rates) for kind, rates in work.items()}

    def _work(self, found: Mapping[str, Any], kind: str) -> Mapping[str, Rate]:
        table = table_in(self.shown, found, kind)
        check_keys(self.shown, table, (*DTYPES, *(() if kind in ALONE else (TF32, NVFP4))), "element types")
        return MappingProxyType({key: self._rate(table, key, f"{kind}.") for key in table})

    def _traffic(self, found: Mapping[str, Any]) -> Mapping[str, Rate]:
        table = table_in(self.shown, found, "traffic")
        check_keys(self.shown, table, TRAFFIC, "kinds of traffic")
        return MappingProxyType({kind: self._rate(table, kind, "traffic.") for kind in table})

    def _link(self, found: Mapping[str, Any], key: str) -> Link:
        table = table_in(self.shown, found, key)
        check_keys(self.shown, table, (*LINK, *COLLECTIVES), "a link")
        own = {name: self._plain_link(table_in(self.shown, table, name), f"{key}.{name}.")
               for name in COLLECTIVES if name in table}  # fmt: skip
        return self._plain_link(table, f"{key}.", own)

    def _plain_link(self, table: Mapping[str, Any], where: str, own: Mapping[str, Link] | None = None) -> Link:
        if own is None:
            check_keys(self.shown, table, LINK, "a collective's link")
        return Link(
            latency=self._number(table, "latency", where),
            bandwidth=self._rate(table, "bandwidth", where),
            hop=self._number(table, "hop", where, zero=True) if "hop" in table else 0.0,
            own=MappingProxyType(dict(own or {})),
        )

    def _rate(self, found: Mapping[str, Any], key: str, where: str = "") -> Rate:
        value = found.get(key)
        if not isinstance(value, list):
            return Rate.of(self._number(found, key, where))
        points: list[tuple[float, float]] = []
        for entry in cast("list[Any]", value):
            pair = cast("list[Any]", entry) if isinstance(entry, list) else []
            if len(pair) != 2 or not all(_above(number) for number in pair):
                raise MspcError(f"{self.shown}: {where}{key} has the entry {entry!r}, not [amount, rate at it] above 0")
            points.append((float(pair[0]), float(pair[1])))
        if not points or any(low[0] >= high[0] for low, high in pairwise(points)):
            raise MspcError(f"{self.shown}: {where}{key} lists amounts that do not rise")
        return Rate(tuple(points))

    def _number(self, found: Mapping[str, Any], key: str, where: str = "", zero: bool = False) -> float:
        """Return a number above 0, or 0 if `zero` allows it. Raise MspcError for others, or if it is missing."""
        if key not in found:
            raise MspcError(f"{self.shown}: {where}{key} is missing")
        value = found[key]
        if not _above(value) and not (zero and value == 0 and not isinstance(value, bool)):
            raise MspcError(f"{self.shown}: {where}{key} is {value!r}, not a number above 0")
        return float(value)


def _called_rounded(rates: Mapping[str, Rate]) -> Mapping[str, Rate]:
    return MappingProxyType({TF32 if name == UNROUNDED else name: rate for name, rate in rates.items()})


def _above(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < 1e30


DIGITS = 4
"""Significant digits of a number."""


def write_machine(path: Path, machine: Machine) -> None:
    """Write a machine file. Raise MspcError if it cannot be written."""
    text = "\n".join(_lines(machine)) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def _lines(machine: Machine) -> Iterator[str]:
    yield f"name = {quoted(machine.name)}"
    yield f"device = {quoted(machine.device)}"
    if machine.source:
        yield f"source = {quoted(machine.source)}"
    if machine.doubts:
        yield "# The machine was too busy while it was measured: calibrate again before these rates are believed."
        yield f"doubts = [{', '.join(map(quoted, machine.doubts))}]"
    yield f"memory = {_rate(machine.memory)}"
    yield f"kernel = {_number(machine.kernel)}"
    yield f"other_products = {_rate(machine.other_products)}"
    if machine.ranks_per_host:
        yield f"ranks_per_host = {machine.ranks_per_host}"
    if machine.capacity:
        yield f"capacity = {machine.capacity}"
    for kind, rates in machine.work.items():
        yield from ("", f"[{kind}]")
        yield from (f"{dtype} = {_rate(rate)}" for dtype, rate in rates.items())
    if machine.traffic:
        yield from ("", "[traffic]")
        yield from (f"{kind} = {_rate(rate)}" for kind, rate in machine.traffic.items())
    yield from _link("link", machine.link)
    if machine.network is not None:
        yield from _link("network", machine.network)


def _link(name: str, link: Link) -> Iterator[str]:
    yield from ("", f"[{name}]", f"latency = {_number(link.latency)}")
    if link.hop:
        yield f"hop = {_number(link.hop)}"
    yield f"bandwidth = {_rate(link.bandwidth)}"
    for operator, own in link.own.items():
        yield from _link(f"{name}.{operator}", own)


def _rate(rate: Rate) -> str:
    if len(rate.points) == 1:
        return _number(rate.points[0][1])
    return f"[{', '.join(f'[{_number(amount)}, {_number(at)}]' for amount, at in rate.points)}]"


def _number(value: float) -> str:
    text = f"{value:.{DIGITS}g}"
    return text if any(c in text for c in ".e") else f"{text}.0"
