"""Machines in files: TOML with the rates that `Machine` has, by the names of `docs/reference/machines.md`.

A rate is one number, or a list of amounts (bytes, operations) with the rate at each, interpolated in between. In files
of earlier versions, with "products of Float32 rounded to TF32" in `source`, rates of Float32 are those of TF32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mspc.analysis.cost.machine import COUNTS, H200, KNOWN_MACHINES, Link, Machine, MachineReader, Rate
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.files.atomic_writing import shown_path, write_atomically
from mspc.ir.files.parsing import quoted, read_toml

LARGEST = 1 << 20
"""Maximum size of a machine file in bytes."""


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
    """Return the machine that a file describes. Raise MspcError if there is no such file, it is no TOML, or a rate is
    missing or impossible."""
    return MachineReader(shown_path(path)).machine(read_toml(path, "machine file", LARGEST), path.stem)


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
    yield from (f"{key} = {getattr(machine, key)}" for key in COUNTS if getattr(machine, key))
    if machine.oversubscription != 1.0:
        yield f"oversubscription = {_number(machine.oversubscription)}"
    for kind, rates in machine.work.items():
        yield from ("", f"[{kind}]")
        yield from (f"{dtype} = {_rate(rate)}" for dtype, rate in rates.items())
    if machine.traffic:
        yield from ("", "[traffic]")
        yield from (f"{kind} = {_rate(rate)}" for kind, rate in machine.traffic.items())
    yield from _link("link", machine.link)
    if machine.network is not None:
        yield from _link("network", machine.network)
    if machine.peak:
        yield from ("", "[peak]", *(f"{key} = {_number(rate)}" for key, rate in machine.peak.items()))


def _link(name: str, link: Link) -> Iterator[str]:
    yield from ("", f"[{name}]", f"latency = {_number(link.latency)}")
    if link.hop:
        yield f"hop = {_number(link.hop)}"
    yield f"bandwidth = {_rate(link.bandwidth)}"
    if len(link.protocols) > 1:
        yield f"protocols = {_rate(Rate(link.protocols))}"
    if link.tree:
        yield f"tree = {_number(link.tree)}"
    if link.wires:
        yield f"wires = {link.wires}"
    for operator, own in link.own.items():
        yield from _link(f"{name}.{operator}", own)


def _rate(rate: Rate) -> str:
    if len(rate.points) == 1:
        return _number(rate.points[0][1])
    return f"[{', '.join(f'[{_number(amount)}, {_number(at)}]' for amount, at in rate.points)}]"


def _number(value: float) -> str:
    text = f"{value:.{DIGITS}g}"
    return text if any(c in text for c in ".e") else f"{text}.0"
