"""The results of compare.py as a table: times, memory, starts, ratios to the best peer and losses beside PyTorch's."""

from __future__ import annotations

import math
import statistics
from typing import Any

Figures = dict[str, Any]
"""The figures of one network: "network", "device", "dtype", "peers": by name, the results or {"error": the reason}."""
OURS = "mspc"


def median(found: Figures) -> float | None:
    """Seconds of a step, or None where there are none."""
    return statistics.median(found["times"]) if found.get("times") else None


def apart(losses: list[float], wanted: list[float]) -> float:
    """The largest relative difference of two lists of losses."""
    return max(abs(a - b) / max(abs(b), 1e-12) for a, b in zip(losses, wanted, strict=False))


def best(figures: Figures, read: Any, peers: str = "") -> tuple[str, float] | None:
    """(name, figure) of the peer whose figure is smallest, mspc aside; `peers` begins the names of those that count."""
    found = {name: read(peer) for name, peer in figures["peers"].items() if name != OURS and name.startswith(peers)}
    known = {name: value for name, value in found.items() if value}
    return min(known.items(), key=lambda entry: entry[1]) if known else None


def ratio(figures: Figures, read: Any, peers: str = "") -> float | None:
    """mspc's figure over the best peer's."""
    ours, other = read(figures["peers"].get(OURS, {})), best(figures, read, peers)
    return ours / other[1] if ours and other else None


def processor(found: Figures) -> float | None:
    """Seconds of the processor in a step."""
    return statistics.median(found["processor"]) if found.get("processor") else None


def rows(figures: Figures) -> list[str]:
    """The lines of one network."""
    title = f"{figures['network']}, {figures['size']} sizes on {figures['device']}, {figures['dtype']}"
    title += f", data {figures['data']} x tensor {figures['tensor']}" if "data" in figures else ""
    if figures.get("stages", 1) > 1:
        title += f", {figures['stages']} stages, {figures['micro_batches']} micro-batches, {figures['schedule']}"
    lines = [title + (", nothing dropped" if figures["nothing_dropped"] else "")]
    twin = figures["peers"].get("torch", {})
    for name, found in figures["peers"].items():
        if "error" in found:
            lines.append(f"  {name:14} {found['error'].splitlines()[-1][:160]}")
            continue
        step = median(found) or 0.0
        line = f"  {name:14} first loss {found['first']:6.1f} s, peak {found['peak'] / 1e9:6.2f} GB"
        if found.get("again"):
            line += f", second start {found['again']:6.1f} s"
        if step:
            times = [1000 * seconds for seconds in found["times"]]
            line += f", step {1000 * step:9.3f} ms ({min(times):.3f} to {max(times):.3f})"
            if figures["device"] == "cpu":
                line += f", processor {1000 * (processor(found) or 0):9.3f} ms"
        line += f", loss {found['losses'][0]:.5f} to {found['losses'][-1]:.5f}"
        if twin.get("losses") and found is not twin:
            line += f", {apart(found['losses'], twin['losses']):.1e} from torch's"
        if twin.get("parameters", found["parameters"]) != found["parameters"]:
            line += ", OTHER PARAMETERS"
        lines.append(line)
    return lines


def ratios(everything: list[Figures]) -> list[str]:
    """mspc over the best peer for all networks, and the geometric means."""
    lines, held = [], "peak, of torch's"
    kinds = ("time", median, ""), ("processor", processor, ""), (held, lambda found: found.get("peak"), "torch")
    for group in sorted(set(map(_group, everything))):
        members = [figures for figures in everything if _group(figures) == group]
        lines.append(f"mspc / best peer, {group[0]} sizes on {group[1]}, {group[2]}")
        for label, read, peers in kinds:
            if label == "processor" and group[1] == "gpu":
                continue
            found = {e["network"]: ratio(e, read, peers) for e in members}
            known = {name: value for name, value in found.items() if value}
            if not known:
                continue
            mean = math.exp(statistics.fmean(map(math.log, known.values())))
            each = ", ".join(f"{name} {value:.2f}" for name, value in known.items())
            lines.append(f"  {label}: geometric mean {mean:.3f} of {len(known)}; {each}")
    return lines


def _group(figures: Figures) -> tuple[Any, ...]:
    """Return the properties that the figures of one mean share."""
    return tuple(figures[part] for part in ("size", "device", "dtype", "nothing_dropped"))


def losses(everything: list[Figures]) -> list[str]:
    """Losses step by step, mspc's above PyTorch's."""
    lines = []
    for figures in everything:
        for name in (OURS, "torch"):
            found = figures["peers"].get(name, {}).get("losses")
            if found:
                lines.append(f"{figures['network']:12} {name:6} " + " ".join(f"{loss:.5f}" for loss in found))
    return lines
