"""Writes machines as the files that `machine_file` reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mspc.analysis.cost.machine import Link, Machine, Rate
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.files.parsing import quoted

DIGITS = 4
"""Figures of a number that count."""


def write_machine(path: Path, machine: Machine) -> None:
    """Write a machine file. Raises MspcError where that cannot be."""
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
