"""fuse_scans: kernels of random graphs compute the same numbers, and graphs that it leaves unchanged."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graphs import REGISTRY, Graph, Value
from tests.operators import FusedScan, TupleGetItem
from tests.ops.cuda.cuda_emulator import NEEDED, Emulator, placed
from tests.passes.fusion.test_fuse_elementwise import fused, names, new_graph, op
from tests.shares import share_of

PASSES = "execute,fuse_elementwise,recompute_elementwise,fuse_moves,fuse_scans,execute"
SHAPE = (3, 10, 6)
SCANS = {"CumSum": 1, "CumulativeLogsumexp": 1, "Cummax": 1, "LinearRecurrence": 2, "CumulativeLogsumexpGrad": 3,
         "LinearRecurrenceGrad": 3}  # fmt: skip


def random_graph(seed: int) -> Graph:
    """Scans between elementwise operators, casts, biases and slices."""
    draw = random.Random(seed)
    graph, b, (x, y, bias) = new_graph(x=("input", SHAPE), y=("parameter", SHAPE), bias=("parameter", SHAPE[-1:]))
    values: list[Value] = [x, y]
    for _ in range(draw.randint(6, 20)):
        value, kind = draw.choice(values[-4:]), draw.randrange(8)
        if kind < 2:
            values.append(b.emit(op(draw.choice(("Tanh", "Sigmoid", "Neg"))), value))
        elif kind == 2:
            values.append(b.emit(op("Add"), value, bias))
        elif kind == 3:
            twice = b.emit(op("Concat", axis=1), value, draw.choice(values))
            ends = (SHAPE[0], 13, SHAPE[2])
            values.append(b.emit(op("StridedSlice", begin=(0, 3, 0), end=ends, strides=(1, 1, 1)), twice))
        elif kind == 4:
            values.append(b.emit(op("Mul"), value, draw.choice(values)))
        else:
            name = draw.choice([*SCANS])
            operands = [b.emit(op("Tanh"), draw.choice(values[-3:])) for _ in range(SCANS[name])]
            found = b.emit(op(name, axis=draw.choice((0, 1, -2, -1))), *operands)
            both = name in ("Cummax", "LinearRecurrenceGrad")
            values.append(b.emit(TupleGetItem(0), found) if both else found)
    graph.results = values[-2:]
    return graph


@pytest.mark.skipif(NEEDED is None, reason="needs g++")
def test_kernels_equal_numpy(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    waiting: list[Any] = []
    for seed in range(share_of(12) + 4):
        for node in fused(random_graph(seed), PASSES).nodes:
            if isinstance(node.op, FusedScan):
                random = np.random.default_rng(seed)
                types = [value.tensor_type for value in node.inputs]
                inputs = [placed(random.uniform(-1, 1, t.shape).astype(t.dtype.numpy)) for t in types]
                expected = node.op.kernel(device)(*[np.array(x) for x in inputs])
                expected = expected if isinstance(expected, tuple) else (expected,)
                made = [placed(np.full_like(x, 7)) for x in expected]
                launch: Any = node.op.launch(device, tuple(made) if len(made) > 1 else made[0], *inputs)
                waiting.append((node.op, launch, made, expected))
    assert len(waiting) > 8
    for what, launch, made, expected in waiting:
        launch()
        for one, other in zip(made, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=str(what))


def scanned(axis: int, read_twice: bool) -> list[str]:
    graph, b, (x,) = new_graph(x=("input", SHAPE))
    value = b.emit(op("Tanh"), x)
    graph.results = [b.emit(op("CumSum", axis=axis), value), *([value] if read_twice else [])]
    return names(fused(graph, PASSES))


def test_what_stays() -> None:
    """Values that others read, and those of scans of contiguous lines."""
    assert scanned(1, False) == ["FusedScan"]
    assert scanned(1, True) == ["Tanh", "CumSum"]
    assert scanned(2, False) == ["Tanh", "CumSum"]


@pytest.mark.parametrize("body", [(), ("Neg(x0)",), ("CumSum(x0, axis=1)",)])
def test_bodies_that_are_none(body: tuple[str, ...]) -> None:
    with pytest.raises(Exception, match=r"not of the form|is no scan|has no lines|lacks the attribute"):
        REGISTRY["FusedScan"](body=body)
