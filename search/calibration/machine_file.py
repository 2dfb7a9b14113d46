"""Machines in files: TOML with the rates that `Machine` has.

    name = "two hosts"
    device = "GPU"                  # target of programs; "CPU" for NumPy
    source = "measured in May"      # origin of the figures
    doubts = ["links: ..."]         # reasons not to believe them, if `mspc calibrate` has found any
    memory = 3.2e12                 # bytes per second that an operator reads and writes
    kernel = 1.5e-6                 # seconds from one small kernel to the next
    other_products = 50e12          # operations per second of matmuls of element types that are not listed
    ranks_per_host = 8              # ranks of a host or an NVLink domain
    cards = 4                       # network cards of a host, if not one for each rank
    ranks_per_pod = 256             # ranks below the same switches, if not all
    oversubscription = 2.0          # bandwidth of a pod's cards by that of its uplinks
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
    wires = 7                       # other ranks to which a rank is wired one by one, if no switch joins them
    [link.AlltoAll]                 # of one collective, if it differs
    latency = 20e-6
    bandwidth = 200e9
    [network]                       # between hosts, as [link]; bandwidth of one card, hop of every further host
    protocols = [[0.4, 0.45], [1, 1]]   # shares of latency and of bandwidth; the fastest counts
    tree = 0.7                      # share of the bandwidth that an AllReduce in a tree reaches

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
