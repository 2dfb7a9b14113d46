"""Products that were joined, on a GPU or an emulated one: steps are those of the products one by one on the CPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc.ir.graph import Graph
from tests.executors import Executor, GpuExecutor, NumPyBackend, OneRank
from tests.gpu.test_shadow_weights_gpu import gpu
from tests.passes.fusion.written_products import NETWORKS, compiled, products, rank_graphs
from tests.shares import is_taken

STEPS = 3


@pytest.mark.parametrize(("name", "kind"), [
    (name, kind) for i, name in enumerate(NETWORKS) for j, kind in enumerate((ms.float32, ms.bfloat16))
    if is_taken(i + j, 2)
], ids=str)  # fmt: skip
def test_steps_are_those_of_products_one_by_one(name: str, kind: Any, tmp_path: Path) -> None:
    """In the second step, and those behind it, the joined weights are what the updates of the step before left."""
    found, feeds = compiled(name, kind)
    (joined,), (apart,) = rank_graphs(found, True), rank_graphs(found, False)
    assert products(joined) < products(apart)
    assert any(node.op.name == "Concat" and node.attrs.get("kept") for node in joined.nodes)
    mine = steps(GpuExecutor(joined, gpu(tmp_path / "gpu"), own(found, joined)), feeds, joined)
    others = steps(Executor(apart, NumPyBackend(OneRank()), own(found, apart)), feeds, apart)
    tolerance = 2e-3 if kind == ms.float32 else 3e-2
    for step, other in zip(mine, others, strict=True):
        for key, value in other.items():
            size = max(float(np.max(np.abs(value))), 1e-3)
            np.testing.assert_allclose(step[key], value, rtol=0, atol=tolerance * size, err_msg=key)


def own(found: Any, graph: Graph) -> dict[str, Any]:
    """The first values of what a graph holds."""
    known = {name: np.asarray(p.array) for name, p in found.traced.parameters.items()} | {
        name: np.asarray(value) for name, value in found.traced.constants.items()
    }
    return {p.name: np.array(known[p.name]) for p in graph.parameters if p.kind in ("parameter", "constant")}


def steps(executor: Any, feeds: list[Any], graph: Graph) -> list[dict[str, Any]]:
    """Return the loss of every step and the parameters after it."""
    found: list[dict[str, Any]] = []
    names = [p.name for p in graph.parameters if p.kind == "parameter"]
    for _ in range(STEPS):
        loss = np.array(executor.run(feeds)[0], np.float64)
        found.append({"": loss} | {name: np.array(executor.parameter(name), np.float64) for name in names})
    return found
