"""Collectives in pieces beside products: the same numbers, chosen where a step gains, by all ranks alike."""

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import nn
from mspc.analysis.cost.machine import H200, Link, Rate
from mspc.analysis.cost.nodes import MatmulSizes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import OFFLOAD, Builder, Graph, Node, Parameter
from mspc.passes.communication.choose_pieces import ChoosePieces
from mspc.passes.communication.schedule_communication import ONE_HOST
from mspc.passes.communication.send_in_pieces import SendInPieces
from mspc.passes.lib.collective_pieces import (
    Gains,
    RowPieces,
    best_pieces,
    exposed_seconds,
    filled,
    row_pieces,
    sums_columns,
)
from mspc.runtime.memory_plan import plan_memory
from tests.compiled_scripts import Compiled, Config, compile_call
from tests.graphs import BFLOAT16, FLOAT32, Collective, MspcError, TensorType
from tests.operators import AllGather, AllReduce, MatMul, ReduceScatter
from tests.passes.communication.large_layers import Layers
from tests.passes.communication.pieces_networks import Case, compare, drawn
from tests.runtime.test_memory_plan import compare as compare_in_memory
from tests.runtime.two_streams import check_places
from tests.serving import SERVED, run_process

CASES = {
    # For each the collectives that can go in pieces.
    "sequence": (Case(), 6),
    "four pieces": (Case(number=4), 6),
    "four ranks": (Case(tensor=4, words=32, turned=True), 6),
    "gelu with a bias": (Case(gelu=True, number=4, words=32), 7),
    "sums": (Case(kind="sums", tensor=4, number=4), 2),
    "recomputed": (Case(recompute=True), 7),
    "loop": (Case(region="loop"), 3),
    "branch": (Case(region="branch", gelu=True), 5),
    "stages": (Case(region="stages", batch=4), 6),
    "texts in place of words": (Case(batch=4, words=6, tensor=2, number=4), 6),
    "neither words nor texts divide": (Case(batch=2, words=6, number=4), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_numbers_are_those_without_pieces(name: str) -> None:
    case, marked = CASES[name]
    assert compare(case) == marked


@pytest.mark.parametrize("seed", range(4))
def test_drawn_networks(seed: int) -> None:
    assert compare(drawn(seed))


def test_planned_memory() -> None:
    """Whatever piece is on its way while others are multiplied, none of their memory is overwritten."""
    found = Case(gelu=True).compiled()
    ChoosePieces(number=2).run(found.graph)
    graph = found.rank_graph(1)
    plan = plan_memory(graph)
    check_places(graph, plan)
    draw = np.random.default_rng(2)
    values = {p.name: (draw.standard_normal(p.shape) / 4).astype(p.tensor_type.dtype.numpy) for p in graph.parameters}
    for order in range(6):
        compare_in_memory(graph, plan, values, order)


@pytest.mark.parametrize(
    ("shape", "axis", "pieces", "expected"),
    [
        ((6, 8), 0, 2, RowPieces(0, True, 4, 6)),
        ((1, 6, 8), 1, 3, RowPieces(1, True, 4, 6)),
        ((4, 6, 8), 1, 2, RowPieces(0, False, 1, 96)),
        ((3, 6, 8), 1, 2, RowPieces(1, True, 12, 6)),
        ((3, 5, 8), 1, 2, None),
        ((6, 8), 1, 2, None),
        ((1, 8), 0, 2, None),
    ],
)
def test_rows_of_pieces(shape: tuple[int, ...], axis: int, pieces: int, expected: RowPieces | None) -> None:
    builder = Builder(Graph("net"))
    x = Parameter("x", TensorType(FLOAT32, shape))
    node = builder.emit(AllGather(axis=axis, rank_list=(0, 1, 2, 3)), x)
    assert row_pieces(node, pieces) == expected


def test_columns_of_pieces() -> None:
    builder = Builder(Graph("net"))
    x = Parameter("x", TensorType(FLOAT32, (8, 12)))
    total = builder.emit(AllReduce(rank_list=(0, 1)), x)
    assert [sums_columns(total, n) for n in (2, 4, 8)] == [True, True, False]
    assert not sums_columns(builder.emit(ReduceScatter(axis=1, rank_list=(0, 1)), x), 2)


def test_rounds_of_blocks() -> None:
    """A part of the rows fills as many of 132 multiprocessors as all rows where no round has fewer blocks."""
    rows = [MatmulSizes(1, n, 8192, 3584) for n in (8192, 2048)]
    whole, part = map(filled, rows)
    assert whole == pytest.approx(896 / (7 * 132))
    assert 224 / (2 * 132) <= part < 0.9 * whole
    assert filled(MatmulSizes(1, 2048, 8192, 1792), beside=True) > 0.95 * filled(MatmulSizes(1, 8192, 8192, 1792))
    assert filled(MatmulSizes(1, 2048, 8192, 2048), beside=True) < filled(MatmulSizes(1, 2048, 8192, 2048))
    assert filled(MatmulSizes(8, 256, 512, 256)) == filled(MatmulSizes(1, 2048, 512, 256))


def step(width: int = 8192, hidden: int = 28672, rows: int = 8192, device: str = "GPU", **settings: Any) -> Compiled:
    network = Layers(width, hidden, 8)
    cell = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
    config = Config(ranks=8, mode="semi_auto_parallel", dataset_strategy="full_batch", device=device, **settings)
    return compile_call(cell, [TensorType(BFLOAT16, (rows, width))], config)


def pieces_of(graph: Graph) -> Counter[tuple[str, str]]:
    """How many collectives are pieces, by operator and phase."""
    return Counter(
        (node.op.name, node.phase) for node in graph.nodes if isinstance(node.op, Collective) and "piece" in node.attrs
    )


def test_a_step_gains_where_products_wait() -> None:
    before = step(computation_communication_fusion_level=0).rank_graph(0)
    after = step().rank_graph(0)
    assert pieces_of(before) == {}
    assert {name for name, phase in pieces_of(after) if phase == "forward"} == {"AllGather", "ReduceScatter"}
    slow = replace(H200, link=Link(12e-6, Rate.of(100e9)))
    for machine, gain in ((H200, 0.03), (slow, 0.03)):
        old, new = StreamTimeline(before, machine), StreamTimeline(after, machine)
        assert new.total < (1 - gain) * old.total
        assert new.hidden > old.hidden
    told = [node.attrs for node in after.nodes if node.attrs.get("piece") == "2 of 4" and "stream" in node.attrs]
    assert told
    assert all(attrs["reason"].endswith("; piece 2 of 4") for attrs in told)
    assert not any("pieces" in node.attrs for node in after.nodes)


def test_all_ranks_decide_alike() -> None:
    compiled = step()
    sent = [
        [str(node.attrs.get("piece")) for node in compiled.rank_graph(rank).nodes if isinstance(node.op, Collective)]
        for rank in range(8)
    ]
    assert all(each == sent[0] for each in sent)


@pytest.mark.parametrize(
    ("level", "phases"), [(0, set()), (1, {"forward"}), (2, {"backward"}), (3, {"forward", "backward"})]
)
def test_levels(level: int, phases: set[str]) -> None:
    graph = step(computation_communication_fusion_level=level).graph
    assert graph.attrs.get("computation_communication_fusion_level", 3) == level
    assert {node.phase for node in graph.nodes if "pieces" in node.attrs} <= phases


def test_a_wrong_level_in_a_header() -> None:
    graph = Graph("net")
    graph.attrs["computation_communication_fusion_level"] = 4
    with pytest.raises(MspcError, match="the header's computation_communication_fusion_level is 4"):
        ChoosePieces().run(graph)


def test_what_lies_in_another_order_on_a_rank_stays_whole() -> None:
    graph = Graph("net")
    x = Parameter("x", TensorType(FLOAT32, (8, 6)))
    graph.parameters = [x]
    total = Builder(graph).emit(AllReduce(rank_list=(0, 1)), x)
    total.attrs["pieces"] = 4
    graph.results = [total]
    SendInPieces().run(graph)
    assert graph.nodes == [total]
    assert total.attrs == {}


def test_what_lives_on_the_host_does_so_put_together() -> None:
    graph = Graph("net")
    x, w = graph.parameters = [Parameter(name, TensorType(FLOAT32, (8, 8))) for name in "xw"]
    builder = Builder(graph)
    gathered = builder.emit(AllGather(rank_list=(0, 1)), x)
    gathered.attrs["pieces"] = 2
    product = builder.emit(MatMul(), gathered, w)
    product.attrs[OFFLOAD] = "Auto"
    graph.results = [product]
    SendInPieces().run(graph)
    graph.verify()
    assert {node.op.name: node.attrs.get(OFFLOAD) for node in graph.nodes} == {
        "StridedSlice": None, "AllGather": None, "BatchMatMul": "Auto", "Concat": "Auto", "Reshape": "Auto",
    }  # fmt: skip


@pytest.mark.parametrize("settings", [{"rows": 64, "width": 64, "hidden": 128}, {"device": "CPU"}])
def test_elsewhere_nothing_changes(settings: Any) -> None:
    compiled = step(**settings)
    assert not any("pieces" in node.attrs for node in compiled.graph.nodes)
    assert pieces_of(compiled.rank_graph(0)) == {}


def test_what_hides_already_gains_nothing() -> None:
    """A product that reads no gathered rows runs beside a gathering that is as long."""
    graph = Graph("net")
    builder = Builder(graph)
    shapes = {"x": (1024, 8192), "w": (8192, 8192), "u": (1024, 1 << 19), "v": (1 << 19, 1024)}
    x, w, u, v = graph.parameters = [Parameter(name, TensorType(BFLOAT16, shape)) for name, shape in shapes.items()]
    gathered = builder.emit(AllGather(rank_list=tuple(range(8))), x)
    product = builder.emit(MatMul(), gathered, w)

    def chosen(*results: Node) -> int:
        graph.results = list(results)
        return best_pieces(Gains(graph, exposed_seconds(graph, ONE_HOST), ONE_HOST), gathered, (2, 4, 8), 0.0)

    assert chosen(product) == 4
    assert chosen(product, builder.emit(MatMul(), u, v)) == 0


SCRIPT = """
import mindspore as ms
from mindspore import Tensor, nn
from tests.passes.communication.large_layers import Layers

ms.set_context(device_target="GPU")
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
network = Layers(8192, 28672, 8)
step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.1))
step(Tensor(shape=(8192, 8192), dtype=ms.bfloat16))
"""


def test_a_plan_with_pieces_is_proved(tmp_path: Path) -> None:
    """So is none that puts them together in another order."""
    (tmp_path / "net.py").write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}

    def told(*given: str) -> str:
        done = run_process(*SERVED, *given, cwd=tmp_path, env=environment)
        return done.stdout + done.stderr

    assert "together" in told("compile", "net.py", "--ranks", "8", "--out", "plan")
    assert "\nequal: " in told("verify", "--scale", "plan")
    for file in (tmp_path / "plan").rglob("*.ir"):
        file.write_text(file.read_text().replace("Concat(x0, x1, ", "Concat(x1, x0, ", 1))
    assert "\ndiffers: " in told("verify", "--scale", "plan")
