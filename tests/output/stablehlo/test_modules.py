"""Programs of all ranks as one StableHLO module: the text, and XLA's devices beside mspc's ranks."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.analysis.aliasing import updated_parameters
from mspc.compiler.pipeline import rank_passes
from mspc.compiler.rank_graphs import RankGraphs, rank_graphs
from mspc.ops.math.xla_functions import XlaFunction
from mspc.output.stablehlo.programs import module_text
from mspc.verify.scale.rank_kinds import RankKind, kinds_of
from tests.compiled_scripts import compiled_script, compiled_text
from tests.executors import Executor, LocalComm, NumPyBackend, World, parse_passes, run_passes
from tests.graphs import Builder, Graph, MspcError, Parameter, TensorType, dtype_of
from tests.interpret import flatten, random_feeds, slice_for
from tests.networks import PASSES, RandomNetwork
from tests.ops.simulate import arrays_of, operator_of, types_of
from tests.pipelining.staged_script import HEAD
from tests.random_networks import feeds_of
from tests.serving import HANG

PYTHON = os.environ.get("MSPC_JAX_PYTHON", "")
needs_jax = pytest.mark.skipif(not PYTHON, reason="MSPC_JAX_PYTHON names no Python with JAX")
SAMPLES = Path(__file__).resolve().parents[3] / "samples"
OPERATORS = (
    "AdamWeightDecay", "AvgPoolGrad", "BatchNormGrad", "Concat", "Conv2D", "Conv2DBackpropFilter",
    "Conv2DBackpropInput", "CumSum", "Dropout", "Erf", "ExpertProduct", "FlashAttentionScore", "FloorMod", "GatherNd",
    "LayerNormGrad", "MaxPoolGrad", "ReluGrad", "SetRows", "Sort", "StridedSlice", "Tile", "TopKRouter",
    "UnsortedSegmentSum",
)  # fmt: skip
ADD, MAXIMUM, AT_LEAST, LESS = (
    (((name, (0, 1), settings),), (2,)) for name, settings in (
        ("add", ()), ("maximum", ()), ("compare", ("GE", "FLOAT")), ("compare", ("LT", "TOTALORDER")))
)  # fmt: skip
ROWS = ((1,), (0,), (), (), (0,), 1)
"""Of a gather or a scatter: whole rows at indices of the first dimension."""
PAIRS = ((1, 2), (1, 2), (1, 1), (1, 1), ((0, 0), (0, 0)))
"""Windows of two elements of a row."""
OF_XLA: dict[str, tuple[Any, ...]] = {
    "gather": (("f4", (6, 4)), ("i4", (3, 1)), (ROWS, (1, 4))),
    "scatter": (("f4", (6, 4)), ("i4", (3, 1)), ("f4", (3, 4)), (ROWS, ADD)),
    "reduce": (("f4", (4, 6)), ("f4", ()), ((1,), MAXIMUM)),
    "reduce_window": (("f4", (4, 6)), ("f4", ()), (PAIRS, MAXIMUM)),
    "select_and_scatter": (("f4", (4, 6)), ("f4", (4, 3)), ("f4", ()), (PAIRS, AT_LEAST, ADD)),
    "sort": (("f4", (4, 6)), (1, LESS)),
    "fft": (("c16", (4, 6)), ("FFT", (6,), "complex128")),
    "triangular_solve": (("f8", (3, 3)), ("f8", (3, 2)), (True, True, True, "TRANSPOSE")),
    "top_k": (("f4", (4, 6)), (2,)),
    "pad": (("f4", (4, 6)), ("f4", ()), ((1, 0), (0, 2), (0, 1))),
    "shift_right_logical": (("u4", (4, 6)), ("u4", (4, 6)), ()),
}
"""Functions of XLA, with their operands and settings."""
STAGES = HEAD + """
settings(pipeline_config={"pipeline_scheduler": "1f1b"})
cell = nn.PipelineCell(staged(), 4)
nn.TrainOneStepCell(cell, nn.Adam(cell.trainable_params(), 0.01))(*batch(16))
"""
REFUSED = """
import numpy as np
import mspc as ms
from mspc import Tensor, nn, ops

class Net(nn.Cell):
    def construct(self, x):
        s, u, v = ops.svd(x)
        print(x)
        return ops.inverse(x) + ops.inverse(u)

Net()(Tensor(np.eye(4, dtype=np.float32)))
"""


def written(graphs: RankGraphs, ranks: int) -> str:
    return module_text(kinds_of(graphs, range(ranks)), ranks, "ranks")


def on_xla(folder: Path, name: str, text: str, arguments: Sequence[Sequence[Any]], ranks: int) -> None:
    """Write a module for XLA, with its arguments of all ranks."""
    (folder / f"{name}.mlir").write_text(text, encoding="utf-8")
    steps = [[np.uint64(1)] * ranks] if "%step:" in text else []
    np.savez(folder / f"{name}.npz", *(np.stack([np.asarray(x) for x in each]) for each in (*arguments, *steps)))


def results(folder: Path, ranks: int) -> dict[str, list[np.ndarray]]:
    """Run the modules of a folder."""
    runner = Path(__file__).with_name("xla_devices.py")
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    subprocess.run([PYTHON, str(runner), str(folder), str(ranks)], env=environment, check=True, timeout=HANG)
    return {file.name.removesuffix(".out.npz"): list(np.load(file).values()) for file in folder.glob("*.out.npz")}


def same(found: np.ndarray, wanted: Any) -> None:
    wanted = np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    tolerance = {4: 1e-5, 8: 1e-10}.get(found.dtype.itemsize, 1e-10) if found.dtype.kind in "fc" else 0.0
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


def beside_xla(folder: Path, name: str, graphs: RankGraphs, feeds: dict[str, np.ndarray], ranks: int) -> list[Any]:
    """Write the module of ranks and run them here; what each result is on its ranks."""
    def main(comm: LocalComm) -> tuple[list[Any], dict[str, Any]]:
        local = graphs.executable(comm.rank)
        given = {p.name: slice_for(p, comm.rank, feeds[p.name]) for p in local.parameters}
        held = {p.name: given[p.name] for p in local.parameters if p.kind != "input"}
        executor = Executor(local, NumPyBackend(comm), held)
        found = executor.run([given[p.name] for p in executor.inputs])
        return flatten(found), {name: executor.parameter(name) for name in held}

    kinds, ran = kinds_of(graphs, range(ranks)), World(ranks).run(main)
    arguments = [[slice_for(p, rank if rank in kind.ranks else kind.ranks[0], feeds[p.name]) for rank in range(ranks)]
                 for kind in kinds for p in kind.graph.parameters]  # fmt: skip
    on_xla(folder, name, written(graphs, ranks), arguments, ranks)
    wanted: list[Any] = []
    for kind in kinds:
        updated = {p for each in updated_parameters(kind.graph).values() for p in each}
        wanted += [{rank: ran[rank][0][i] for rank in kind.ranks} for i in range(len(ran[kind.ranks[0]][0]))]
        wanted += [{r: ran[r][1][p.name] for r in kind.ranks} for p in kind.graph.parameters if p in updated]
    return wanted


@needs_jax
def test_operators_on_one_device(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {}
    for name in OPERATORS:
        op, sample = operator_of(name, 0)
        types = types_of(sample)
        arrays = arrays_of(name, sample, types)
        graph = Graph("one")
        graph.parameters = [Parameter(f"x{i}", type, "input") for i, type in enumerate(types)]
        graph.results = [Builder(graph).emit(op, *graph.parameters)]
        on_xla(tmp_path, name, module_text([RankKind((0,), graph)], 1, "one"), [[x] for x in arrays], 1)
        own = [x.copy() for x in arrays]
        made = World(1).run(lambda comm, op=op, own=own: op.kernel(NumPyBackend(comm, step=1))(*own))
        wanted[name] = [*flatten(made), *(own[i] for i in sorted(op.mutates))]
    for name, (*operands, options) in OF_XLA.items():
        generator = np.random.default_rng(0)
        arrays = [(generator.normal(size=shape) * 3).astype(dtype) for dtype, shape in operands]
        arrays = [np.abs(x.astype(np.int32)).astype(x.dtype) % 6 if x.dtype.kind in "iu" else x for x in arrays]
        graph, op = Graph("one"), XlaFunction(function=name, options=options)
        graph.parameters = [Parameter(f"x{i}", TensorType(dtype_of(x.dtype), x.shape), "input")
                            for i, x in enumerate(arrays)]  # fmt: skip
        graph.results = [Builder(graph).emit(op, *graph.parameters)]
        on_xla(tmp_path, name, module_text([RankKind((0,), graph)], 1, "one"), [[x] for x in arrays], 1)
        made = op.row.run(*arrays, *options)
        wanted[name] = made if isinstance(made, tuple) else [made]
    found = results(tmp_path, 1)
    for name, each in wanted.items():
        for left, right in zip(found[name], each, strict=True):
            same(left[0], right)


@needs_jax
def test_ranks(tmp_path: Path) -> None:
    """Tensors and batches in slices, stages of a pipeline with micro-batches, and slices of different sizes."""
    wanted: dict[str, Any] = {}
    sample = compiled_script(SAMPLES / "quickstart" / "net.py", 8)
    stages = compiled_text(tmp_path, HEAD.replace("init()", "STAGES = 2\ninit()") + STAGES.removeprefix(HEAD), 8)
    for name, compiled in (("sample", sample), ("stages", stages)):
        feeds: dict[str, np.ndarray] = {}
        for rank in range(8):
            feeds = random_feeds(compiled.rank_graphs.executable(rank)) | feeds
        wanted[name] = beside_xla(tmp_path, name, compiled.rank_graphs, feeds, 8)
    for seed in (17762970155972, 160215742132725, 225820135221983):
        network = RandomNetwork(seed, ())
        ready = run_passes(network.graph, parse_passes(PASSES))
        graphs = rank_graphs(ready, ("slice_to_rank", *rank_passes()[1:]))
        wanted[str(seed)] = beside_xla(tmp_path, str(seed), graphs, feeds_of(network, 1)[0], 8)
    found = results(tmp_path, 8)
    for name, each in wanted.items():
        for left, of_ranks in zip(found[name], each, strict=True):
            for rank, right in of_ranks.items():
                same(left[rank], right)


def test_the_text_has_names_groups_and_lines(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mspc", "compile", str(SAMPLES / "quickstart" / "net.py"), "--ranks", "8", "-q"]
    subprocess.run([*command, "--emit", "stablehlo", "--out", "graphs"], cwd=tmp_path, check=True)
    text = (tmp_path / "graphs" / "program.mlir").read_text(encoding="utf-8")
    assert text == written(compiled_script(SAMPLES / "quickstart" / "net.py", 8).rank_graphs, 8)
    assert 'mspc.layout = "(2, 4) [1, -]", tf.aliasing_output = 1 : i32} loc("w")' in text
    assert '"stablehlo.all_to_all"(%arg0)' in text
    assert "replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]>" in text
    assert 'net.py":38:15 at ' in text


def test_operators_without_a_form_are_named_with_counts(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="no form in StableHLO has Svd, Print, MatrixInverse") as caught:
        written(compiled_text(tmp_path, REFUSED, 1).rank_graphs, 1)
    assert "MatrixInverse: 2 times" in caught.value.render()
