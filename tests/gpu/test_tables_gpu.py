"""Tables that are looked up and trained on GPUs, beside the NumPy executor and the steps without groups."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.compiler import pipeline
from mspc.ir.graph import Graph
from mspc.passes.fusion.update_rows import UpdateRows
from mspc.passes.lib.unused_states import drop_unused_parameters, stateless_nodes
from tests.executors import Executor, GpuExecutor, NumPyBackend, OneRank
from tests.gpu.programs import compiled
from tests.gpu.test_gpu_executor import device

STEPS = 3


def counted(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def trained(executor: Any, graph: Graph, feeds: list[Any]) -> dict[str, Any]:
    """Losses and weights after some steps."""
    losses = [float(np.asarray(executor.run(feeds)[0])) for _ in range(STEPS)]
    weights = {p.name: np.asarray(executor.parameter(p.name)) for p in graph.parameters if p.trainable}
    return {"losses": np.array(losses)} | weights


def on_gpu(name: str, folder: Path, at_run: bool) -> tuple[Graph, dict[str, Any]]:
    """(the graph that ran, what was trained). at_run: a run leaves states away whose momentum is 0."""
    graph, values, feeds = compiled(name, "GPU")
    if at_run:
        found = stateless_nodes(graph, lambda scalar: float(values[scalar.name]))
        assert found
        for one in found:
            one.apply(one.node)
        assert UpdateRows().run(graph)
        drop_unused_parameters(graph)
    held = {p.name: np.array(values[p.name]) for p in graph.parameters if p.kind != "input"}
    return graph, trained(GpuExecutor(graph, device(folder), held), graph, feeds)


@pytest.mark.parametrize("name", ["tables", "tables, updated by hand"])
def test_rows_are_updated_as_tables_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, found = on_gpu(name, tmp_path, at_run=name == "tables")
    found_in = counted(graph)
    assert all(found_in[kind] == 1 for kind in ("GroupedLookups", "GroupedRowUpdate"))
    without = ("group_lookups", "update_rows")
    monkeypatch.setattr(pipeline, "STEPS", tuple(step for step in pipeline.STEPS if step.name not in without))
    plain, dense = on_gpu(name, tmp_path, at_run=False)
    assert counted(plain)["GatherGrad"] == 6
    cpu, values, feeds = compiled(name)
    held = {p.name: np.array(values[p.name]) for p in cpu.parameters if p.kind != "input"}
    expected = trained(Executor(cpu, NumPyBackend(OneRank()), held), cpu, feeds)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=2e-5, atol=1e-5, err_msg=key)
        assert found[key].tobytes() == dense[key].tobytes(), key
