"""The page shows times that `mspc run --profile` measured, node by node beside what was predicted."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from mspc.commands.view.dump import Dump
from mspc.commands.view.schedule import rounded
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import read_bytes
from mspc.ir.graph import Graph

HOW = "mspc run --profile FILE writes one"
LONGEST = 1e15
"""Microseconds of a time."""
MEASURED = 16
"""Ranks whose measured times the page holds, so that it does not grow with the ranks."""


def read_profile(path: Path, dump: Dump) -> dict[int, dict[str, Any]]:
    """By rank: `steps` that were timed, and by node [begin, seconds], means of the steps.

    Raises:
        MspcError: the file cannot be read or is no profile, or it is of another compile.
    """
    events = _events(path)
    graphs = {rank: graph for kind, graph in zip(dump.ranks_of, dump.programs, strict=True) for rank in kind}
    spans: dict[int, dict[int, list[tuple[int, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        rank, node, step = _checked(path, event, graphs)
        spans[rank][node].append((step, float(event["ts"]) / 1e6, float(event["dur"]) / 1e6))
    if len(spans) > MEASURED:
        dump.notes.append(f"measured times are those of the first {MEASURED} of {len(spans)} ranks")
    return {rank: _means(spans[rank]) for rank in sorted(spans)[:MEASURED]}


def _events(path: Path) -> list[dict[str, Any]]:
    try:
        content = parsed_json(read_bytes(path))
    except FileNotFoundError:
        raise MspcError(f"there is no profile {str(path)!r}") from None
    except ValueError as error:
        raise MspcError(f"{path} is no profile: {error}", notes=[HOW]) from None
    except OSError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    events = content.get("traceEvents") if isinstance(content, dict) else None
    if not isinstance(events, list):
        raise MspcError(f"{path} is no profile: it has no list of traceEvents", notes=[HOW])
    spans = [event for event in events if isinstance(event, dict) and event.get("ph") == "X"]
    return [event for event in spans if not (isinstance(args := event.get("args"), dict) and args.get("region"))]


def _checked(path: Path, event: dict[str, Any], graphs: dict[int, Graph]) -> tuple[int, int, int]:
    """(rank, node, step) of an event. Raises MspcError where the dump has no such node."""
    args = event.get("args")
    said = args if isinstance(args, dict) else {}
    rank, node, step = (_integer(number) for number in (event.get("pid"), said.get("node"), said.get("step")))
    if min(rank, node, step) < 0 or not all(_is_time(event.get(key)) for key in ("ts", "dur")):
        raise MspcError(f"{path} is no profile of mspc: an event {str(event.get('name'))!r} names no node")
    graph = graphs.get(rank)
    if graph is None:
        raise MspcError(f"{path} is of another compile: it has times of rank {rank}, which the dump lacks")
    if node >= len(graph.nodes):
        raise MspcError(f"{path} is of another compile: it has a node {node}, rank {rank} has {len(graph.nodes)}")
    there = graph.nodes[node]
    if (event.get("name"), said.get("result")) != (there.label, str(there.type)):
        raise MspcError(
            f"{path} is of another compile: node {node} of rank {rank} is {event.get('name')} there, "
            f"{there.label} {there.type} here"
        )
    return rank, node, step


def _is_time(number: Any) -> bool:
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < LONGEST


def _integer(number: Any) -> int:
    """A number that counts; -1 for anything else."""
    return number if isinstance(number, int) and not isinstance(number, bool) else -1


def _means(rows: dict[int, list[tuple[int, float, float]]]) -> dict[str, Any]:
    """Of one rank; steps follow each other in a trace, so each begins where its first node does."""
    begins: dict[int, float] = {}
    for spans in rows.values():
        for step, begin, _ in spans:
            begins[step] = min(begin, begins.get(step, begin))
    nodes = {
        node: [
            rounded(sum(begin - begins[step] for step, begin, _ in spans) / len(spans)),
            rounded(sum(seconds for _, _, seconds in spans) / len(spans)),
        ]
        for node, spans in sorted(rows.items())
    }
    return {"steps": len(begins), "nodes": nodes}
