"""Traces of the predicted step: the wire format is decoded here, and ranks that follow the dependencies all finish."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.report.verbosity import Loudness
from mspc.ir.diagnostics import MspcError

NETWORKS = Path(__file__).resolve().parents[2] / "benchmarks" / "networks"
LOOPS, STAGES, EXCHANGES = "llama.py", "staged_llama.py", "long_llama.py"
SIZES = {LOOPS: "lazy 2 32 4 64 64 2 4 8 16", STAGES: "4 32 4 2 64 64 2 2 2 4 16", EXCHANGES: "1 32 4 2 64 64 1 4 2 32"}
ID, KIND, DATA, BEGIN = 1, 3, 5, 6
SENDS, RECEIVES, COLLECTIVE = 5, 6, 7


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value, shift, at = value | (data[at] & 0x7F) << shift, shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = number(data, at)
        value, at = number(data, at)
        if key & 7 == 2:
            at, value = at + value, data[at : at + value]
        yield key >> 3, value


def messages(data: bytes) -> Iterator[dict[Any, Any]]:
    """Yield fields by number, attributes by name."""
    at = 0
    while at < len(data):
        size, at = number(data, at)
        several = list(fields(data[at : at + size]))
        attributes = [[content for _, content in fields(value)] for place, value in several if place == 10]
        yield dict(several) | {name.decode(): own for name, own in attributes}
        at += size


def listed(data: bytes, at: int = 0) -> Iterator[int]:
    while at < len(data):
        value, at = number(data, at)
        yield value


@pytest.mark.parametrize("script", SIZES)
def test_ranks_that_follow_their_dependencies_finish(script: str, tmp_path: Path) -> None:
    given = tuple(SIZES[script].split())
    options = CompileOptions(ranks=8, out=tmp_path / "out", trace=tmp_path / "out", script_arguments=given,
                             loudness=Loudness(quiet=True))  # fmt: skip
    with pytest.raises(MspcError, match="which is replaced as a whole"):
        compile_target(str(NETWORKS / script), options)
    options = replace(options, trace=tmp_path / "traces")
    compile_target(str(NETWORKS / script), options)
    groups = json.loads((tmp_path / "traces" / "comm_groups.json").read_text()) | {"0": range(8)}
    waiting = {rank: list(messages((tmp_path / "traces" / f"trace.{rank}.et").read_bytes()))[1:] for rank in range(8)}
    assert sum(node.get("num_ops", 0) for node in waiting[0]) > 0 == min(node[BEGIN] for node in waiting[0])
    calls: Counter[object] = Counter()
    seen: set[tuple[int, int]] = set()
    done: set[tuple[int, int]] = set()
    while any(waiting.values()):
        before = len(done)
        for rank, node in [(rank, node) for rank, several in waiting.items() for node in several]:
            own, kind = (rank, node[ID]), node[KIND]
            if not all((rank, other) in done for other in listed(node.get(DATA, b""))):
                continue
            group = node.get("pg_name", b"").decode()
            key = (group, node.get("comm_type"), *(node.get(f"comm_{end}") for end in ("src", "dst", "tag")))
            if own not in seen and kind in (SENDS, COLLECTIVE):
                seen.add(own)
                calls.update((key, (key, rank)))
            wanted = calls[key, rank] * len(groups[group]) if kind == COLLECTIVE else kind == RECEIVES
            if kind == SENDS or calls[key] >= wanted:
                calls[key] -= kind == RECEIVES
                done.add(own)
                waiting[rank].remove(node)
        assert len(done) > before, "the ranks wait for each other"
    events = json.loads((tmp_path / "traces" / "perfetto.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == ({0, 4} if script == STAGES else {0})
