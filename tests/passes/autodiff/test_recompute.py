"""Recomputing a marked cell: the same numbers from less memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.api.state import Session
from mspc.compiler.driver import Compiled, compile_call
from mspc.engine.capture import capture
from mspc.output.programs import config_of
from mspc.runtime.memory_plan import plan_memory

MARK = "[Layer() for _ in range(LAYERS)]"


@pytest.fixture
def compiled(root: Path, tmp_path: Path) -> dict[str, Compiled]:
    source = (root / "benchmarks/networks/layers.py").read_text()
    assert MARK in source
    source = source.replace("BATCH, SEQUENCE, HEADS = 8, 16, 8", "BATCH, SEQUENCE, HEADS = 8, 64, 8")
    found: dict[str, Compiled] = {}
    for name, layer in (("saved", "Layer()"), ("recomputed", "Layer().recompute()")):
        script = tmp_path / f"{name}.py"
        script.write_text(source.replace(MARK, f"[{layer} for _ in range(LAYERS)]"))
        captured = capture(script, ["4"], Session.of_rank(0, 8))
        found[name] = compile_call(captured.target, captured.args, config_of(captured, 8))
    return found


def test_recomputed_layers_hold_less_memory_and_do_more_work(compiled: dict[str, Compiled]) -> None:
    stored, recomputed = (compiled[name].rank_graph(0) for name in ("saved", "recomputed"))
    assert len(recomputed.nodes) > len(stored.nodes)
    assert plan_memory(recomputed).peak < 0.8 * plan_memory(stored).peak
