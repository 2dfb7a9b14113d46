"""Fused attention of Float32: its kernels run by g++ with tensor cores played in C++, and compiled by nvcc."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ops.cuda.flash_attention import flash_backward, flash_forward
from mspc.passes.fusion.fuse_attention import FuseAttention
from tests.executors import Grad, Simplify
from tests.graphs import BOOL, REGISTRY, Constant, Graph, TensorType, Value, parse, print_graph
from tests.interpret import run_global, same
from tests.operators import FlashAttentionScore, TupleGetItem
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, Emulator, compiled_by_nvcc, placed
from tests.ops.cuda.cuda_tensor_cores import TensorCores
from tests.ops.cuda.flash_cases import (
    CASES,
    FORWARD_TILES,
    KEY_TILES,
    QUERY_TILES,
    Case,
    Wide,
    empty,
    expected,
    gradient_of,
    relative_error,
)
from tests.ops.cuda.flash_term_cases import (
    DROPPED,
    EXACT,
    OF_FLOAT32,
    TERM_CASES,
    TOLERANCES,
    TermCase,
    results_of,
    term_expected,
)
from tests.passes.fusion.masked_attention import LOWEST, Masked, with_whole_rows
from tests.shares import is_taken
from tests.stored_attention import results_as_stored


@dataclass
class Prepared:
    """found: what the launches fill; wanted: what NumPy finds."""

    device: TensorCores
    launches: list[Any]
    found: list[np.ndarray]
    wanted: list[np.ndarray]


def prepared_case(device: TensorCores, case: Case) -> Prepared:
    known = expected(case)
    op, backward = known.op, gradient_of(known.op)
    out, grads = empty(op, known.inputs), empty(backward, known.operands)
    launches = [op.launch(device, out, *known.inputs), backward.launch(device, grads, *known.operands)]  # type: ignore[arg-type]
    return Prepared(device, launches, [out[0], out[3], *grads], [*known.out, *known.grads])


def with_tiles(device: TensorCores, case: Case, number: int) -> Prepared:
    """The same with the work divided otherwise."""
    known = expected(case)
    op, backward = known.op, gradient_of(known.op)
    out, grads = empty(op, known.inputs), empty(backward, known.operands)
    n, m = case.heads, case.key_heads
    forward = op.attention(known.inputs, out[0], (n, m, m))
    gradient = backward.attention(known.operands, known.operands[-2], (n, m, m, n))
    views = op.views(forward.shape, (out[3], known.operands[-1], *grads), (n, n, n, m, m))
    launches = [
        flash_forward(device, forward, views[0], FORWARD_TILES[number]),
        flash_backward(device, gradient, views[1], views[2:], QUERY_TILES[number], KEY_TILES[number]),
    ]
    return Prepared(device, launches, [out[0], out[3], *grads], [*known.out, *known.grads])


TILED = ("several tiles", "causal from the ends")
NAMES = [*CASES, *(f"{name}, tiles {number}" for number in range(1, len(FORWARD_TILES)) for name in TILED)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Prepared]:
    """All cases; their kernels are compiled together."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = TensorCores(tmp_path_factory.mktemp("kernels"))
    found = {name: prepared_case(device, case) for name, case in CASES.items()}
    for number in range(1, len(FORWARD_TILES)):
        for name in TILED:
            found[f"{name}, tiles {number}"] = with_tiles(device, CASES[name], number)
    return found


def error_of(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest error, over the largest number or 1; infinities are equal."""
    error = np.zeros(found.shape)
    np.subtract(found, wanted, out=error, where=found != wanted)
    return float(np.max(np.abs(error))) / max(1.0, float(np.max(np.abs(wanted), where=np.isfinite(wanted), initial=0)))


@pytest.mark.parametrize("name", NAMES)
def test_kernels_equal_numpy(prepared: dict[str, Prepared], name: str) -> None:
    case = prepared[name]
    case.device.launched.clear()
    for launch in case.launches:
        launch()
    assert case.device.launched == ["flash_forward", "flash_backward", "flash_backward"]
    errors = [error_of(*pair) for pair in zip(case.found, case.wanted, strict=True)]
    assert all(error < 1e-5 for error in errors), errors


def test_products_of_tf32_are_even(tmp_path: Path) -> None:
    """With truncated operands, copies made at once: errors are TF32's, and have no direction."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = TensorCores(tmp_path, rounds=True, eager=True)
    cases = [prepared_case(device, case) for case in (Case(64, 100, 140, heads=2), Case(128, 40, 70, heads=2))]
    for case in cases:
        for launch in case.launches:
            launch()
        for found, wanted in zip(case.found, case.wanted, strict=True):
            error = found - wanted
            assert 5e-6 < np.linalg.norm(error) / np.linalg.norm(wanted) < 1e-3
            # How much of it is the result itself, made larger or smaller: 1e-3 and more if operands were truncated.
            assert abs(np.sum(error * wanted) / np.sum(wanted * wanted)) < 1e-4


def test_products_of_float32_as_it_is(tmp_path: Path) -> None:
    """Three products of truncated operands make one of Float32."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = TensorCores(tmp_path, rounds=True)
    device.tf32 = False
    case = prepared_case(device, Case(64, 60, 70, heads=2, sparse_mode=2))
    for launch in case.launches:
        launch()
    assert device.launched == ["flash_forward", "flash_backward", "flash_backward"]
    errors = [error_of(*pair) for pair in zip(case.found, case.wanted, strict=True)]
    assert all(error < 3e-6 for error in errors), errors


SPILLED = 80
"""Bytes of a thread that kernels may put aside, of 512 to 1,020 in registers: what lies outside of their loops."""
REFUSED = {
    "rows of no 16 bytes": Case(50, 20, 20),
    "a deeper head": Case(264, 20, 20),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_kernels_do_not_take(tmp_path: Path, name: str) -> None:
    op, inputs = REFUSED[name].operator(), REFUSED[name].inputs()[:3]
    device = TensorCores(tmp_path)
    out = empty(op, inputs)
    assert flash_forward(device, op.attention(inputs, out[0], (1, 1, 1)), inputs[0]) is None  # type: ignore
    assert device.sources == {}


class Texts(TensorCores):
    """A device that keeps the texts of the kernels that it is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts: dict[str, str] = {}

    def kernel(self, source: str, name: str) -> Any:
        self.texts[source] = name
        return super().kernel(source, name)


def sources(folder: Path, together: bool) -> list[str]:
    """Kernels of halves and of Float32 with terms and draws, which hold the most in registers, and products of Float32
    as it is. together: where four warps can multiply together, those that do."""
    device = Texts(folder)
    device.warp_groups = together
    plain = [TermCase(Case(depth, 40, 48), dtype=dtype) for depth, dtype in ((64, "BFloat16"), (64, "Float32"))]
    terms = [replace(case, settings=DROPPED, shift=(1, 1, 40, 48), mask=(1, 1, 1, 48)) for case in plain]
    deep = TermCase(Case(128, 40, 48), dtype="Float32")
    as_it_is = (plain[1], False)
    for case, device.tf32 in (*((case, True) for case in (*terms, deep)), as_it_is):
        known = term_expected(case)
        backward = gradient_of(known.op)
        known.op.launch(device, results_of(known.op, known.inputs), *known.inputs)  # type: ignore[arg-type]
        backward.launch(device, results_of(backward, known.operands), *known.operands)  # type: ignore[arg-type]
    return [
        source for source, name in device.texts.items() if name.startswith("flash") and ("wgmma" in source) is together
    ]


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
@pytest.mark.parametrize("architecture", ["90a", pytest.param("90", marks=pytest.mark.thorough)])
def test_kernels_compile_for_h200_and_spill_little(tmp_path: Path, architecture: str) -> None:
    texts = sources(tmp_path, architecture == "90a")
    told = compiled_by_nvcc(tmp_path, texts, "-Xptxas", "-v", architecture=architecture)
    spilled = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", told)
    assert len(spilled) == len(texts)
    assert all(int(nbytes) <= SPILLED for pair in spilled for nbytes in pair), told


# If keys have much the same value, gradients of attention are what rounding of the result leaves.


SHAPE = (2, 24, 2, 32)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_gradients_of_kernels_are_those_of_results_as_they_are_stored(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    query, key, value, dout = (random.standard_normal(SHAPE) for _ in range(4))
    value = value[:, :1] + 1e-2 * value
    query, key, value, dout = (x.astype(ml_dtypes.bfloat16) for x in (query, key, value, dout))
    op = FlashAttentionScore(SHAPE[2], scale_value=SHAPE[3] ** -0.5, input_layout="BSND")
    wide = [x.astype(np.float64) for x in (query, key, value, dout)]
    forward: Any = op.run(Wide(), *wide[:3])  # type: ignore[arg-type]  # the tests' backend
    statistics, result = forward[0], forward[3].astype(ml_dtypes.bfloat16)
    backward = gradient_of(op)
    given = [*wide, statistics, result.astype(np.float64)]
    exact: Any = backward.run(Wide(), *given)  # type: ignore[arg-type]
    with results_as_stored():
        stored: Any = backward.run(Wide(), *given)  # type: ignore[arg-type]
    found = [np.full(x.shape, np.nan, x.dtype) for x in (query, key, value)]
    operands = [query, key, value, dout, statistics.astype(np.float32), result]
    launch: Any = backward.launch(TensorCores(tmp_path), found, *operands)  # type: ignore[arg-type]
    launch()
    for place, name in enumerate(("query", "key", "value")):
        kernel = found[place].astype(np.float64)
        apart, lost = np.abs(kernel - stored[place]).max(), np.abs(stored[place] - exact[place]).max()
        assert apart <= 2**-7 * np.abs(stored[place]).max(), name
        if name != "value":
            assert lost > 8 * apart, name


DAILY = {name: case for place, (name, case) in enumerate(TERM_CASES.items()) if is_taken(place, 4) or case.total}
GROUPED = {
    f"{name}, four warps together": case
    for place, (name, case) in enumerate(TERM_CASES.items())
    if case.case.depth in (64, 128) and is_taken(place, 6)
}
OTHERS = {name: case for place, (name, case) in enumerate(OF_FLOAT32.items()) if is_taken(place, 14)}
TERMS_CASES = DAILY | GROUPED | OTHERS
TermsPrepared = tuple[list[Any], list[np.ndarray], list[np.ndarray]]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> TensorCores:
    if NEEDED is None:
        pytest.skip("needs g++")
    made = TensorCores(tmp_path_factory.mktemp("kernels"))
    made.multiprocessors = 32
    return made


@pytest.fixture(scope="module")
def terms_prepared(device: TensorCores) -> dict[str, TermsPrepared]:
    """(launches, what they fill, what NumPy finds) of all cases; their kernels are compiled together."""
    found: dict[str, TermsPrepared] = {}
    for name, case in TERMS_CASES.items():
        device.warp_groups = name in GROUPED
        known = term_expected(case)
        backward = gradient_of(known.op)
        out, grads = results_of(known.op, known.inputs), results_of(backward, known.operands)
        launches = [known.op.launch(device, out, *known.inputs), backward.launch(device, grads, *known.operands)]  # type: ignore[arg-type]
        if known.shift is not None:
            (total,) = results_of(known.shift, known.operands)
            launches.append(known.shift.launch(device, total, *known.operands))  # type: ignore[arg-type]
            grads.append(total)
        found[name] = launches, [out[0], out[3], *grads], [*known.out, *known.grads]
    return found


@pytest.mark.parametrize("name", TERMS_CASES)
def test_kernels_of_terms_equal_numpy(device: TensorCores, terms_prepared: dict[str, TermsPrepared], name: str) -> None:
    launches, found, wanted = terms_prepared[name]
    device.launched.clear()
    for launch in launches:
        launch()
    case = TERMS_CASES[name]
    of_keys = 2 if case.case.depth > 128 else 1
    shifted = ["flash_backward", "flash_shift"] * bool(case.shift)
    assert device.launched == ["flash_forward", "flash_backward", *["flash_backward"] * of_keys, *shifted]
    errors = [relative_error(a.astype(np.float64), b) for a, b in zip(found, wanted, strict=True)]
    limit = EXACT if case.dtype == "Float32" else TOLERANCES[case.dtype]
    assert all(error < limit for error in errors), errors


def test_long_sums_are_made_in_parts(device: TensorCores, terms_prepared: dict[str, TermsPrepared]) -> None:
    assert terms_prepared
    assert "shift_total" in [name for _, name in device.sources]


def filled(number: float) -> Graph:
    m = Masked("BSND")
    return m.finish(m.filled(m.scores(), m.parameter("mask", (2, 1, 4, 5), BOOL), number))


def added(number: float) -> Graph:
    m = Masked("BNSD")
    shift = m.parameter("shift", (2, 1, 4, 5))
    shift.kind = "input" if number == -math.inf else "parameter"
    return m.finish(m.emit("Add", m.scores(), shift), shift)


NUMBERS = {"1e4": -1e4, "1e9": -1e9, "lowest": LOWEST, "inf": -math.inf}
MASKED_CASES = {f"{make.__name__} {name}": (make, n) for make in (filled, added) for name, n in NUMBERS.items()}


def masked_prepared(
    device: Emulator, graph: Graph, feeds: dict[str, Any]
) -> tuple[list[Callable[[], object]], list[Any], set[str]]:
    """(what is to be run in turn, the results' arrays, operators with kernels)."""
    values: dict[Value, Any] = {p: placed(feeds[p.name]) for p in graph.parameters}
    runs: list[Callable[[], object]] = []
    names: set[str] = set()

    def by_numpy(op: Any, inputs: list[Any], out: Any) -> Callable[[], object]:
        kernel = op.kernel(device)
        return lambda: np.copyto(out, kernel(*inputs))

    for node in graph.nodes:
        inputs = [placed(np.asarray(v.value)) if isinstance(v, Constant) else values[v] for v in node.inputs]
        op: Any = node.op
        if isinstance(op, TupleGetItem):
            values[node] = inputs[0][op.index]
            continue
        single = isinstance(node.type, TensorType)
        types: Any = (node.type,) if single else node.type.elements  # type: ignore[union-attr]  # a tuple
        made = tuple(placed(np.full(t.shape, 7).astype(t.dtype.numpy)) for t in types)
        values[node] = made[0] if single else made
        launch = op.launch(device, values[node], *inputs)
        if launch is None:
            assert single
            launch = by_numpy(op, inputs, made[0])
        else:
            names.add(op.name)
        runs.append(launch)
    return runs, [values[v] for v in graph.results], names


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every case with the numbers of what is written out; all kernels are compiled together."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Emulator(tmp_path_factory.mktemp("kernels"))
    found: dict[str, Any] = {}
    for name, (make, number) in MASKED_CASES.items():
        graph = make(number)
        before = parse(print_graph(graph), REGISTRY).main
        assert FuseAttention().run(graph)
        Grad().run(graph)
        Simplify().run(graph)
        draw = np.random.default_rng(3).standard_normal
        feeds = {p.name: draw(p.shape).astype(np.float32) for p in graph.parameters}
        rows = with_whole_rows((2, 1, 4, 5), 1)
        feeds |= {"mask": rows} if make is filled else {"shift": np.where(rows, number, 0).astype(np.float32)}
        with np.errstate(all="ignore"):
            expected = run_global(before, feeds)[: len(graph.results)]
        found[name] = *masked_prepared(device, graph, feeds), expected
    return found


@pytest.mark.parametrize("name", MASKED_CASES)
def test_numbers_are_those_written_out(cases: dict[str, Any], name: str) -> None:
    runs, results, names, expected = cases[name]
    with np.errstate(all="ignore"):
        for run in runs:
            run()
    assert {"FlashAttentionScore", "FlashAttentionScoreGrad"} <= names
    same(results, expected)
