"""Compiled loops against NumPy: every operator that they take, chains, rows, sums, updates, edges of numbers."""

import math
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.blocks import in_parallel
from mspc.ops.cpu.loops import kernel as loop_kernels
from mspc.ops.cpu.loops import library, program
from mspc.ops.math.elementwise import Erf, Exp, Expm1, Log, Log1p
from mspc.ops.math.reduce import ReduceSum
from mspc.ops.tensor import scatter
from tests.graphs import MspcError, Op, TensorType, dtype_of, element_types
from tests.operators import FusedElementwise, GatherGrad, OneHot, Sigmoid, SiLU, Softmax, Tanh
from tests.ops.cuda import cuda_cases
from tests.ops.cuda.cuda_chains import (
    Case,
    NumPy,
    chain,
    chain_cases,
    decided_case,
    edge_cases,
    row_cases,
    sample_cases,
    update_cases,
)
from tests.ops.cuda.row_update_cases import CASES, Tables, bits

pytestmark = [
    pytest.mark.skipif(not library.compiler(), reason="needs a C++ compiler"),
    pytest.mark.usefixtures("quick_compiler"),
]
FAMILIES = (
    "Softmax", "SoftmaxBackward", "LogSoftmax", "LogSoftmaxGrad", "LayerNorm", "LayerNormGrad", "RmsNorm", "Dropout",
    "GatherGrad", "UnsortedSegmentSum", "TensorScatterAdd", "TensorScatterMax", "ReduceSum", "ReduceMax", "ReduceMean",
    "OneHot", "BroadcastTo", "FusedLayerNorm", "FusedLayerNormGrad",
)  # fmt: skip


def compiled(cases: Sequence[Any]) -> program.LoopKernels:
    return program.kernels(NumPy(), {i: (case.op, case.types, case.results()) for i, case in enumerate(cases)})


def loop(op: Op, *shapes: tuple[int, ...], dtypes: Sequence[str] = ()) -> Any:
    """The loop of an operator on operands of Float32."""
    names = dtypes or ["Float32"] * len(shapes)
    types = [TensorType(dtype_of(name), shape) for name, shape in zip(names, shapes, strict=True)]
    return program.kernels(NumPy(), {0: (op, types, [op.infer(*types)])}).loops[0]  # type: ignore[list-item]


def listed(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def check(cases: Sequence[Case]) -> None:
    """Run the cases, all of which are loops, into memory that is given and into their own, and compare with NumPy."""
    loops = compiled(cases).loops
    assert len(cases) == len(loops), [str(c) for i, c in enumerate(cases) if i not in loops]
    for number, kernel in loops.items():
        case = cases[number]
        inputs = case.inputs()
        before = [np.array(x) for x in inputs]
        out = [np.empty(t.shape, t.dtype.numpy) for t in case.results()]
        if case.alias >= 0:
            out[0] = inputs[case.alias]
        made = listed(kernel(*inputs, out=tuple(out) if len(out) > 1 else out[0]))
        assert all(one is other for one, other in zip(made, out, strict=True))
        case.check(made, before)
        for one, other in zip(listed(kernel(*before)), made, strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("dtype", ["Float16", "BFloat16"])
def test_halves_are_compared_as_memory_holds_them(dtype: str) -> None:
    case, wanted = decided_case(dtype)
    np.testing.assert_array_equal(compiled([case]).loops[0](*case.inputs()), wanted)


def test_every_elementwise_operator_equals_numpy() -> None:
    cases = [case for case in sample_cases(("Float32",)) if case.types and case.types[0].shape]
    cases = [case for case in cases if case.op.name != "PReLU"]  # it is not broadcast
    assert len({case.op.name for case in cases}) > 80
    check(cases)


def test_edges_equal_numpy() -> None:
    check(list(edge_cases()))


def test_chains_equal_numpy() -> None:
    check(list(chain_cases()))


def test_rows_equal_numpy() -> None:
    check(list(row_cases()))


@pytest.mark.thorough
def test_families_equal_numpy() -> None:
    cases = [case for case in cuda_cases.all_cases() if case.op.name in FAMILIES]
    loops = compiled(cases).loops
    assert {cases[i].op.name for i in loops} == set(FAMILIES) & {case.op.name for case in cases}
    for number, kernel in loops.items():
        case = cases[number]
        inputs = case.inputs()
        case.check(listed(kernel(*inputs)), case.expected(inputs))


def test_updates_equal_numpy() -> None:
    cases = list(update_cases())
    kernels = compiled(cases).updates
    assert len(kernels) == len(cases)
    for number, kernel in kernels.items():
        case = cases[number]
        inputs = [np.array(x) for x in case.inputs()]
        before = [np.array(x) for x in inputs]
        made = listed(kernel(*inputs))
        assert all(any(one is other for other in inputs) for one in made)
        case.check([*made, *(inputs[i] for i in case.op.mutates)], before)


@pytest.mark.parametrize(
    ("op", "formula", "most"),
    [
        (Exp(), np.exp, 1), (Log(), np.log, 1), (Log1p(), np.log1p, 3), (Tanh(), np.tanh, 2), (Expm1(), np.expm1, 3),
        (Erf(), np.vectorize(math.erf), 3), (Sigmoid(), lambda x: 1 / (1 + np.exp(-x)), 3),
        (SiLU(), lambda x: x / (1 + np.exp(-x)), 4),
    ],
    ids=lambda value: getattr(value, "name", ""),
)  # fmt: skip
def test_functions_of_float32_are_right_to_the_last_places(op: Op, formula: Any, most: float) -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 20000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([bits, random.normal(0, 3, 20000).astype(np.float32)])
    x = x[np.abs(x) < 80] if op.name in ("Sigmoid", "SiLU") else x  # NumPy's own overflow beyond
    with np.errstate(all="ignore"):
        wanted = formula(x.astype(np.float64))
        rounded = wanted.astype(np.float32)
    found = loop(op, x.shape)(x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(rounded))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(rounded))
    finite = np.isfinite(rounded)
    unit = np.spacing(np.abs(rounded[finite])).astype(np.float64)
    assert np.max(np.abs(found[finite] - wanted[finite]) / unit) <= most


@pytest.mark.parametrize(
    ("shape", "axis"), [((7, 40000), (1,)), ((40000, 7), (0,)), ((300, 1001), ()), ((9, 80, 33), (0, 2))]
)
def test_sums_of_float32_lose_no_more_than_their_rounding(shape: tuple[int, ...], axis: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).random(shape).astype(np.float32) + np.float32(1000)
    found = loop(ReduceSum(False, axis), shape)(x)
    np.testing.assert_allclose(found, x.astype(np.float64).sum(axis=axis or None), rtol=3e-7)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernels, "SHARED", 1)
    body = ("Mul(x0, x1)", "Softmax(t0, axis=-1)", "Exp(t1)", "ReduceSum(t2, keep_dims=false, axis=(0))",
            "ReduceSum(t2, keep_dims=false, axis=())")  # fmt: skip
    case = chain(("Float32 300 130", "Float32 130"), body, (2, 3, 4))
    inputs = case.inputs()
    found: list[Any] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(thread_pool, "thread_count", lambda count=threads: count)
        found.append(compiled([case]).loops[0](*inputs))
    for one in found[1:]:
        for array, other in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(array, other)


def test_totals_stay_alive_while_they_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[bool] = []

    def fresh(_: str, shape: Sequence[int], dtype: Any) -> Any:
        found = np.empty(shape, dtype)
        made.append(weakref.ref(found))
        return found

    def noted(*_: Any) -> Any:
        return lambda table: alive.append(made[-1]() is not None)

    monkeypatch.setattr(loop_kernels, "scratch", fresh)  # as of totals that are too large to be stored
    monkeypatch.setattr(loop_kernels, "shared", noted)
    loop(ReduceSum(False, (0,)), (40, 30))(np.ones((40, 30), np.float32))
    assert alive == [True]


def test_operands_and_results_may_lie_anywhere() -> None:
    random = np.random.default_rng(2)
    x = random.random((64, 96)).astype(np.float32)
    kernel = loop(Softmax(), (96, 64))
    wanted = kernel(np.ascontiguousarray(x.T))
    np.testing.assert_array_equal(kernel(x.T), wanted)
    apart = np.zeros((96, 128), np.float32)
    assert kernel(x.T, out=apart[:, ::2]).base is apart
    np.testing.assert_array_equal(apart[:, ::2], wanted)
    again = np.ascontiguousarray(x.T)
    np.testing.assert_array_equal(kernel(again, out=again), wanted)


def test_a_result_over_an_operand_that_is_read_at_other_places() -> None:
    case = chain(("Float32 1 64", "Float32 64 64"), ("Add(x1, x0)", "Mul(t0, x0)"), (1,))
    (kernel,) = compiled([case]).loops.values()
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    row = x[3:4]
    wanted = (x + row) * row
    np.testing.assert_array_equal(kernel(row, x, out=x), wanted)


def test_ids_that_name_no_row_are_refused_as_ever() -> None:
    kernel = loop(GatherGrad(size=5), (40, 8), (40,), dtypes=("Float32", "Int32"))
    rows, ids = np.ones((40, 8), np.float32), np.arange(40, dtype=np.int32) % 5
    ids[7] = -2
    wanted = GatherGrad(size=5).run(NumPy(), rows, ids)  # type: ignore[arg-type]
    np.testing.assert_array_equal(kernel(rows, ids), wanted)
    ids[9] = 5
    with pytest.raises(IndexError):
        kernel(rows, ids)


@pytest.mark.parametrize("op", [getattr(scatter, f"TensorScatter{how}") for how in ("Add", "Sub", "Mul", "Max", "Min")])
@pytest.mark.parametrize("slice_of", [{}, {"begins": (8,), "sizes": (24,)}])
def test_rows_of_one_place_are_combined_in_a_loop(op: Any, slice_of: dict[str, Any]) -> None:
    random = np.random.default_rng(1)
    x, rows = random.standard_normal((6, 40)).astype(np.float32), random.standard_normal((70, 40)).astype(np.float32)
    ids = random.integers(-24 if slice_of else -6, 24 if slice_of else 6, (70, 1), np.int32)
    x[2, 3] = rows[5, 7] = np.nan
    kernel = loop(op(**slice_of), x.shape, ids.shape, rows.shape, dtypes=("Float32", "Int32", "Float32"))
    alone = x.copy()
    wanted = op(**slice_of).run(NumPy(), x, ids, rows)  # type: ignore[arg-type]
    for found in (kernel(x, ids, rows), kernel(alone, ids, rows, out=alone)):
        np.testing.assert_allclose(found, wanted, 1e-6, 1e-6)
    ids[9] = 24
    with pytest.raises(IndexError):
        kernel(x, ids, rows)


# Libraries on disk


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a line for every library that it makes, and a cache of its own."""
    log, script = tmp_path / "log", tmp_path / "counting"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) ;; *) echo made >> {log};; esac\nexec {library.compiler()[0]} "$@"\n'
    )
    script.chmod(0o755)
    log.touch()
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return log


def made(log: Path) -> int:
    """Libraries that were compiled so far; a loop is run by the way."""
    x = np.linspace(0, 1, 100, dtype=np.float32)
    np.testing.assert_allclose(loop(Exp(), (100,))(x), np.exp(x), rtol=1e-6)
    return len(log.read_text().splitlines())


def test_a_library_is_compiled_once_and_anew_where_it_is_damaged(counted: Path) -> None:
    assert made(counted) == 1
    assert made(counted) == 1
    (path,) = library.cache_folder("loops").iterdir()
    content = path.read_bytes()
    for number, damaged in enumerate((content[:-40], content[:2000], b"", b"\0" * 64, content + b"x")):
        path.unlink()  # what is loaded stays as it is
        path.write_bytes(damaged)
        assert made(counted) == 2 + number
    assert path.read_bytes()[:-32] != b""


def one(name: str = "one") -> Any:
    """A library with one function of this name, from the cache or compiled."""
    return library.library_of(library.compiler(), f'extern "C" int {name}() {{ return 1; }}', [name])


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where a new cache has the library `one`: the file holds another function, and its checksum is right."""
    one(), one("other")
    files = library.cache_folder("loops").glob("*.so")
    one_file, other_file = sorted(files, key=lambda path: b"other" in path.read_bytes())
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    place = library.cache_folder("loops") / one_file.name
    place.parent.mkdir(0o700, parents=True)
    place.parent.parent.chmod(0o700)
    place.write_bytes(other_file.read_bytes())
    place.chmod(0o600)
    return place


def test_a_library_without_its_function_is_compiled_anew(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = planted(counted.parent / "planted", monkeypatch)
    assert one().one() == 1
    assert len(counted.read_text().splitlines()) == 3
    assert b"other" not in place.read_bytes()


def test_a_compiler_whose_library_lacks_a_function_fails(counted: Path) -> None:
    with pytest.raises(library.CompilerFailed, match="lacks a function"):
        library.library_of(library.compiler(), 'extern "C" int one() { return 1; }', ["two"])


@pytest.mark.parametrize("changed", ["file", "folder", "folder above"])
def test_a_library_that_others_may_write_is_not_loaded(
    changed: str, counted: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = planted(counted.parent / "planted", monkeypatch)
    content = place.read_bytes()
    open_to_all = {"file": place, "folder": place.parent, "folder above": place.parent.parent}[changed]
    open_to_all.chmod(0o777)
    assert one().one() == 1
    assert len(counted.read_text().splitlines()) == 3
    if changed != "file":
        assert place.read_bytes() == content, "nothing is stored there"
        assert f"other users own {str(open_to_all)!r} or may write there" in capsys.readouterr().err


def test_libraries_not_used_for_longest_are_removed(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        one(f"number{number}")
    folder = library.cache_folder("loops")
    sizes = {path: path.stat().st_size for path in folder.glob("*.so")}
    oldest, used, newest = (next(path for path in sizes if b"number%d" % n in path.read_bytes()) for n in range(3))
    for path, age in ((oldest, 1), (used, 2), (newest, 0)):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 60 * age))
    one("number1")
    monkeypatch.setattr(library, "MAX_BYTES", sum(sizes.values()))
    one("number3")
    assert oldest not in (left := set(folder.glob("*.so")))
    assert {used, newest} < left


def test_ranks_that_ask_at_once_compile_once(counted: Path) -> None:
    in_parallel([lambda: made(counted)] * 4)
    assert made(counted) == 1
    assert [path.suffix for path in library.cache_folder("loops").iterdir()] == [".so"]


def test_a_folder_that_takes_no_library_is_done_without(counted: Path) -> None:
    (counted.parent / "cache").write_text("a file")
    assert made(counted) == 1


def test_other_flags_make_another_library(counted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(counted) == 1
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, "-O0"))
    assert made(counted) == 2


@pytest.mark.parametrize("command", ["false", "sh -c 'echo strange >&2; exit 3'"])
def test_a_compiler_that_fails_is_told_of_once(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", command)
    library.warn_compiler_failed.cache_clear()
    case = chain(("Float32 8 8",), ("Exp(x0)",), (0,))
    assert compiled([case]) == ({}, {})
    assert compiled([case]) == ({}, {})
    said = capsys.readouterr().err
    assert said.count("warning: the C++ compiler") == 1
    assert "NumPy" in said
    assert library.SWITCH in said


def test_nothing_is_compiled_without_a_compiler_or_where_it_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    case = chain(("Float32 8 8",), ("Exp(x0)",), (0,))
    with monkeypatch.context() as off:
        off.setenv(library.SWITCH, "0")
        assert compiled([case]) == ({}, {})
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "there-is-none")
    assert compiled([case]) == ({}, {})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("fused", [False, True])
def test_loops_refuse_the_labels_that_numpy_refuses(fused: bool) -> None:
    one_hot = OneHot(axis=1, depth=64, classes=64, ignored=-100)
    hit = "OneHot(x1, x2, x3, axis=1, depth=64, offset=0, classes=64, ignored=-100)"
    body = ("LogSoftmax(x0, axis=1)", hit, "Mul(t0, t1)")
    rows, numbers = [(8, 64)] * fused, ["Float32"] * fused
    op = FusedElementwise(body, (2,)) if fused else one_hot
    run = loop(op, *rows, (8,), (), (), dtypes=(*numbers, "Int32", "Float32", "Float32"))
    labels = np.array([0, 63, -100, 7, 1, 2, 3, 4], np.int32)
    logits, values = [np.ones((8, 64), np.float32)] * fused, (np.float32(1), np.float32(0))
    run(*logits, labels, *values)
    labels[3] = 64
    with pytest.raises(MspcError, match="label 64 is not from 0 to 63"):
        run(*logits, labels, *values)


HALVES = ("halves", "narrow gradients")


def calls_of(tables: Tables) -> list[program.Call]:
    """The update of rows; then for every member the sum of its rows, and its dense update."""
    types = tables.types()
    calls: list[program.Call] = [(tables.op, types, element_types(tables.op.infer(*types)))]
    for op, own, summed in tables.op.members(types):
        own[tables.op.gradient] = made = op.infer(*summed)
        calls += (op, summed, [made]), (tables.op.member, own, own[: len(tables.op.member.writes)])
    return calls


@pytest.fixture(scope="module")
def kernels(quick_compiler: None) -> dict[str, list[Any]]:
    """The kernels of every case's calls, None for those that are not compiled; all are compiled together."""
    calls = [(name, call) for name, tables in CASES.items() for call in calls_of(tables)]
    found = program.kernels(NumPy(), {number: call for number, (_, call) in enumerate(calls)})
    made: dict[str, list[Any]] = {name: [] for name in CASES}
    for number, (name, (op, _, _)) in enumerate(calls):
        made[name].append((found.updates if op.has_side_effect else found.loops).get(number))
    return made


def by_tables(tables: Tables, kernels: list[Any]) -> list[Any]:
    """The operands behind compiled sums and dense updates."""
    operands = [np.array(x) for x in tables.operands]
    sums, updates = kernels[1::2], kernels[2::2]
    for (_, own, summed), add, update in zip(tables.op.members(operands), sums, updates, strict=True):
        own[tables.op.gradient] = add(*summed)
        update(*own)
    return operands


@pytest.mark.parametrize("name", [name for name in CASES if name not in HALVES])
def test_parameters_are_those_of_dense_updates(name: str, kernels: dict[str, list[Any]]) -> None:
    tables = CASES[name]
    operands = [np.array(x) for x in tables.operands]
    made = kernels[name][0](*operands)
    assert [id(x) for x in made] == [id(operands[i]) for i in tables.op.mutates]
    assert bits(operands) == bits(by_tables(tables, kernels[name]))


@pytest.mark.parametrize("name", HALVES)
def test_sums_in_halves_are_numpys(name: str, kernels: dict[str, list[Any]]) -> None:
    assert kernels[name][0] is None


def test_the_number_of_threads_changes_no_bit_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernels, "SHARED", 1)
    found: list[list[bytes]] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(thread_pool, "thread_count", lambda count=threads: count)
        operands = [np.array(x) for x in CASES["wide rows"].operands]
        types = CASES["wide rows"].types()
        call = CASES["wide rows"].op, types, element_types(CASES["wide rows"].op.infer(*types))
        program.kernels(NumPy(), {0: call}).updates[0](*operands)
        found.append(bits(operands))
    assert found[0] == found[1] == found[2]


def test_integers_that_name_no_row_are_refused_and_change_nothing(kernels: dict[str, list[Any]]) -> None:
    operands = [np.array(x) for x in CASES["one table"].operands]
    operands[2][3] = 50
    before = bits(operands)
    with pytest.raises(IndexError, match="outside of"):
        kernels["one table"][0](*operands)
    assert bits(operands) == before


def test_operands_may_lie_anywhere(kernels: dict[str, list[Any]]) -> None:
    tables = CASES["one table"]
    operands = [np.array(x) for x in tables.operands]
    operands[1], operands[2] = np.repeat(operands[1], 2, 0)[::2], np.repeat(operands[2], 2)[::2]
    kernels["one table"][0](*operands)
    assert bits(operands) == bits(by_tables(tables, kernels["one table"]))
