"""CUDA kernels of elementwise operators, fused chains and updates: run by g++ against NumPy, compiled by nvcc."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import FLOAT8_E4M3, FLOAT32, TensorType, dtype_of
from mspc.ops.bases import Elementwise
from mspc.ops.cuda.elementwise import MovedRead, Offset
from mspc.ops.cuda.moves import transpose_bytes
from mspc.ops.device import source_text
from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps, loaded_bytes, moved_operands
from tests.graphs import REGISTRY, MspcError, Op, element_types
from tests.operators import ExpertPlaces, FusedMatMul, ScaledMatMul
from tests.ops.cuda.cuda_cases import NumPy
from tests.ops.cuda.cuda_chains import (
    Case,
    chain,
    chain_cases,
    decided_case,
    edge_cases,
    row_cases,
    sample_cases,
    tensor,
    update_cases,
)
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, Emulator, placed
from tests.ops.cuda.random_moves import made, random_body
from tests.passes.fusion.test_fuse_elementwise import fused
from tests.passes.fusion.test_fuse_rows import PASSES, random_graph
from tests.serving import succeed
from tests.shares import share_of

FORMULAS = source_text("ops/cuda/formulas.cuh")


class Device(Emulator):
    """Emulates a GPU; what stands before every kernel is compiled once."""

    shared = FORMULAS

    def kernel(self, source: str, name: str) -> Any:
        return super().kernel(without_common(source), name)


COMMON_NAMES = set(re.findall(r"__forceinline__ [\w ]+?(\w+)\(", FORMULAS))


def without_common(source: str) -> str:
    """A kernel without what it must begin with, if it calls a function of that."""
    own = source.removeprefix(FORMULAS)
    called = COMMON_NAMES.intersection(re.findall(r"\w+", own))
    assert not called or source.startswith(FORMULAS), called
    return own


def prepared(device: Any, case: Case) -> tuple[list[Any], list[Any], Any]:
    """(operands, results, launch) of a case."""
    inputs = [placed(x, case.shift) for x in case.inputs()]
    if case.op.mutates:
        made = [inputs[i] for i in case.op.mutates]
    else:
        made = [placed(np.zeros(t.shape, t.dtype.numpy), case.shift) for t in case.results()]
    if case.alias >= 0:
        made[0] = inputs[case.alias]
    launch = case.op.launch(device, made[0] if len(made) == 1 else tuple(made), *inputs)
    assert launch is not None, str(case)
    return inputs, made, launch


def check(cases: Sequence[Case], folder: Path) -> None:
    """Run the cases' kernels on the CPU and compare with NumPy."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Device(folder)
    made = [(case, *prepared(device, case)) for case in cases]
    for case, inputs, results, launch in made:
        before = [np.array(x) for x in inputs]
        launch()
        changed = [inputs[i] for i in case.op.mutates]
        case.check([*(_results(case, inputs) if changed else results), *changed], before)


def _results(case: Case, inputs: Sequence[Any]) -> list[Any]:
    """An update's results are the first operands of every member."""
    members = getattr(case.op, "members", lambda operands: [operands])(inputs)
    outputs = getattr(case.op, "member", case.op).outputs
    return [operands[i] for operands in members for i in range(outputs)]


def test_every_elementwise_operator_has_an_expression() -> None:
    assert [name for name, cls in REGISTRY.items() if issubclass(cls, Elementwise) and not cls.cuda] == []


def test_samples_equal_numpy(tmp_path: Path) -> None:
    check(list(sample_cases(("Float64", "Float32", "BFloat16"))), tmp_path)


def test_edges_equal_numpy(tmp_path: Path) -> None:
    check(list(edge_cases()), tmp_path)


def test_chains_equal_numpy(tmp_path: Path) -> None:
    check(list(chain_cases()), tmp_path)


def test_rows_equal_numpy(tmp_path: Path) -> None:
    check(list(row_cases()), tmp_path)


@pytest.mark.skipif(NEEDED is None, reason="needs g++")
@pytest.mark.parametrize("dtype", ["Float16", "BFloat16"])
def test_halves_are_compared_as_memory_holds_them(dtype: str, tmp_path: Path) -> None:
    """A chain does not round its values; what it recomputes still equals what was stored."""
    case, wanted = decided_case(dtype)
    _, made, launch = prepared(Device(tmp_path), case)
    launch()
    np.testing.assert_array_equal(made, wanted)


def test_kernels_of_random_graphs_equal_numpy(tmp_path: Path) -> None:
    cases = [
        Case(node.op, tuple(value.tensor_type for value in node.inputs))
        for seed in range(20)
        for node in fused(random_graph(seed), PASSES).nodes
        if isinstance(node.op, FusedElementwise)
    ]
    assert len(cases) > 20
    check(cases, tmp_path)


def test_updates_equal_numpy(tmp_path: Path) -> None:
    check(list(update_cases()), tmp_path)


def test_nothing_is_updated_after_a_stop(tmp_path: Path) -> None:
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Device(tmp_path)
    device.stop[0] = 1
    (case, *_) = update_cases()
    inputs, _, launch = prepared(device, case)
    before = [np.array(x) for x in inputs]
    launch()
    for one, other in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(one, other)


def sources(cases: Sequence[Case]) -> list[tuple[str, str]]:
    """(source, name) of the cases' kernels as a large GPU gets them."""
    device = Emulator(Path("."), multiprocessors=132)
    for case in cases:
        prepared(device, case)
    return list(device.sources)


def test_sizes_do_not_change_the_source() -> None:
    body = ("Mul(x0, x1)", "Tanh(t0)", "ReduceSum(t1, keep_dims=false, axis=(0))")
    cases = [chain((f"Float32 {rows} 64", "Float32 64"), body, (1, 2)) for rows in (4096, 8192)]
    assert len(sources(cases)) == len(sources(cases[:1])) == 2


@pytest.mark.thorough
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    wanted = {"BFloat16", "Float16", "Float32"}
    cases = [c for c in chain_cases(64) if {t.dtype.name for t in c.types} & wanted][::3]
    cases += list(row_cases(64))
    cases += list(update_cases(64))[::7]
    cases += [c for c in sample_cases(("BFloat16",)) if len(c.types[0].shape) == 1][::2]
    parts = [source_text("ops/cuda/prelude.cuh"), FORMULAS]
    for number, (source, name) in enumerate(sources(cases)):
        own = without_common(source)
        renamed = re.sub(rf"\b{name}\(", f"{name}{number}(", own)
        parts.append(f"namespace kernel{number} {{\n{renamed}\n}}")
    file = tmp_path / "kernels.cu"
    file.write_text("\n".join(parts), encoding="utf-8")
    target = ["-gencode=arch=compute_90,code=compute_90", "-ptx", "-o", str(tmp_path / "kernels.ptx")]
    succeed(NVCC, "-std=c++17", *target, str(file))


# Products with what follows them, whether the library joins it or a kernel works behind the product.


SHAPES = {"x": "24 40", "y": "40 56", "addend": "24 56", "bias": "56", "before": "24 56"}
ACTIVATED: dict[FusedMatMul, Sequence[str]] = {
    FusedMatMul(activation="gelu"): (),
    FusedMatMul(activation="gelu", bias=True, keeps_before=True): ("bias",),
    FusedMatMul(activation="gelu", addend=True): ("addend",),
    FusedMatMul(activation="gelu_gradient"): ("before",),
}


def activated_cases() -> list[Case]:
    """Products with every activation in several element types, of eighths: their sums are exact in whatever order a
    library takes them, and what is left is the error of the activation."""
    draw = np.random.default_rng(1).integers
    cases: list[Case] = []
    for op, names in ACTIVATED.items():
        for dtype in ("Float64", "Float32", "BFloat16"):
            types = tuple(tensor(f"{dtype} {SHAPES[name]}") for name in ("x", "y", *names))
            values = tuple((draw(-8, 9, type.shape) / 8).astype(type.dtype.numpy) for type in types)
            cases.append(Case(op, types, values))
    return cases


class Choosing(Device):
    """A GPU on which of several launches the one at `place` is taken."""

    place = 0

    def fastest(self, kind: Any, launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
        return launches[self.place]


@pytest.mark.parametrize("place", [0, -1])
def test_activations_are_as_exact_as_the_element_type(tmp_path: Path, place: int) -> None:
    device = Choosing(tmp_path)
    device.place = place
    made = [(case, *prepared(device, case)) for case in activated_cases()]
    for case, inputs, results, launch in made:
        launch()
        case.check(results, inputs)


def test_products_alone_take_one_launch(tmp_path: Path) -> None:
    device = Choosing(tmp_path)
    case = Case(replace(FusedMatMul(), bias=True), tuple(map(tensor, ("Float64 24 40", "Float64 40 56", "Float64 56"))))
    inputs, results, launch = prepared(device, case)
    launch()
    case.check(results, inputs)
    assert not device.sources


def test_bytes_are_transposed(tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    for shape in ((16, 16), (64, 144), (208, 80)):
        source = placed(np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8))
        target = placed(np.zeros(shape[::-1], np.uint8))
        transpose_bytes(device, source, target)()  # type: ignore[arg-type]  # all that it calls
        np.testing.assert_array_equal(target, source.T)


def test_matmuls_with_a_scale_for_each_block_equal_numpy(tmp_path: Path) -> None:
    device, random = Emulator(tmp_path), np.random.default_rng(1)
    device.scaled_matmul = lambda *_: None  # type: ignore[attr-defined]  # as for blocks on a GPU
    for ta, tb, scales in ((False, True, ((8, 2), (2, 2))), (True, False, ((2, 1), (2, 4))), (False, False, ((), ()))):
        x, y = (
            placed(random.standard_normal((32, 8) if turned else (8, 32)).astype(FLOAT8_E4M3.numpy))
            for turned in (ta, not tb)
        )
        given = [placed(np.asarray(random.uniform(0.5, 2, shape), np.float32)) for shape in scales]
        op, out = ScaledMatMul(ta, tb, FLOAT32), placed(np.zeros((8, 8), np.float32))
        launch = op.launch(device, out, x, y, *given)  # type: ignore[arg-type]  # as above
        assert launch is not None
        launch()
        np.testing.assert_allclose(out, op.run(NumPy(), x, y, *given), rtol=1e-5, atol=1e-5)  # type: ignore[arg-type]


Lines = list[tuple[Op, str]]
BF16, F32 = dtype_of("BFloat16"), dtype_of("Float32")


def moved(lines: Lines, *returns: int) -> FusedElementwise:
    """The operator of lines, each with its operands as "x0 t1"."""
    steps = [BodyLine(op, tuple((word[0], int(word[1:])) for word in read.split())) for op, read in lines]
    return FusedElementwise.of(steps, returns or (len(steps) - 1,))


def part(shape: tuple[int, ...], axis: int, begin: int, end: int, step: int = 1) -> Op:
    """The slice begin:end:step along one axis."""
    first, last = [0] * len(shape), list(shape)
    first[axis], last[axis] = begin, end
    strides = tuple(step if d == axis else 1 for d in range(len(shape)))
    return made("StridedSlice", begin=tuple(first), end=tuple(last), strides=strides)


def rotary(*shape: int) -> FusedElementwise:
    """A rotary embedding: x * cos + (-right, left) * sin."""
    half = shape[-1] // 2
    return moved([
        (made("Cast", dst_type=F32), "x0"), (made("Mul"), "t0 x1"),
        (part(shape, len(shape) - 1, half, 2 * half), "x0"), (made("Neg"), "t2"),
        (part(shape, len(shape) - 1, 0, half), "x0"), (made("Concat", axis=-1), "t3 t4"),
        (made("Cast", dst_type=F32), "t5"), (made("Mul"), "t6 x2"), (made("Add"), "t1 t7"),
        (made("Cast", dst_type=BF16), "t8"),
    ])  # fmt: skip


def normalised(op: Op, shape: tuple[int, ...]) -> Lines:
    """Rows of what an operator makes of x0, of this shape, less the largest element of each."""
    axes = (len(shape) - 1,)
    return [(op, "x0"), (made("ReduceMax", keep_dims=True, axis=axes), "t0"), (made("Sub"), "t0 t1")]


CASES: list[tuple[FusedElementwise, tuple[str, ...]]] = [
    (rotary(2, 4, 16, 64), ("BFloat16 2 4 16 64", "Float32 16 64", "Float32 16 64")),
    (rotary(3, 6), ("BFloat16 3 6", "Float32 3 6", "Float32 6")),
    (moved([(part((9,), 0, 7, 0, -2), "x0"), (made("Exp"), "t0")]), ("Float32 9",)),
    (moved([(part((9,), 0, 2, 3), "x0"), (made("Exp"), "t0")]), ("Float16 9",)),
    (moved([(part((1,), 0, 0, 1), "x0"), (made("Neg"), "t0")]), ("Int64 1",)),
    (moved([(made("StridedSlice", begin=(2,), end=(2,), strides=(1,)), "x0"), (made("Neg"), "t0")]), ("Float32 5",)),
    (moved([(made("Exp"), "x0"), (made("Pad", paddings=((1, 2), (3, 0))), "t0"), (made("Add"), "t1 x1")]),
     ("Float32 5 7", "Float32 10")),
    (moved([(made("PadV3", paddings=(2, 1)), "x0 x1"), (made("Exp"), "t0")]), ("Float32 3 5", "Float32")),
    (moved([(made("Tile", multiples=(2, 3)), "x0"), (made("Exp"), "t0")]), ("Float32 5 4",)),
    (moved([(made("RepeatInterleaveInt", repeats=3, dim=1), "x0"), (made("Exp"), "t0")]), ("Float16 5 4",)),
    (moved([(made("ReverseV2", axis=(0, 1)), "x0"), (made("Exp"), "t0")]), ("BFloat16 5 8",)),
    (moved([(made("Stack", axis=1), "x0 x1"), (made("ReduceSum", axis=(0,)), "t0")]), ("Float32 5 4", "Float32 5 4")),
    (moved([(made("Mul"), "x0 x1"), (made("Transpose", perm=(0, 2, 1, 3)), "t0"),
            (made("ReduceSum", axis=(0, 1)), "t1")], 1, 2), ("Float32 2 4 16 8", "Float32 16 8")),
    (moved([(made("Transpose", perm=(0, 2, 1, 3)), "x0"), (made("Reshape", shape=(5, 6)), "t0"),
            (made("Add"), "t1 x1")]), ("Float32 2 1 3 5", "Float32 5 1")),
    (moved([(made("BroadcastTo", shape=(6, 4)), "x0"), (part((6, 4), 0, 1, 5), "t0"), (made("Neg"), "t1")]),
     ("Float32 1 4",)),
    (moved(normalised(part((256, 128), 1, 32, 96), (256, 64))), ("Float32 256 128",)),
    (moved(normalised(part((256, 128), 1, 96, 32, -1), (256, 64))), ("BFloat16 256 128",)),
    (moved(normalised(made("Transpose", perm=(0, 2, 1, 3)), (4, 50, 6, 8))), ("BFloat16 4 6 50 8",)),
    (moved(normalised(made("Pad", paddings=((1, 2), (3, 2))), (133, 3005))), ("Float32 130 3000",)),
    (moved([(made("Concat", axis=1), "x0 x1"), (made("Softmax"), "t0")]), ("BFloat16 130 8", "BFloat16 130 16")),
]  # fmt: skip
"""Slices from both ends, of one element and of none, margins, repetition, joins, ahead of reductions and along rows;
rows that end within rows of what was moved."""


def test_kernels_equal_numpy(tmp_path: Path) -> None:
    check([Case(op, tuple(map(tensor, types)), shift=shift) for op, types in CASES for shift in (0, 8)], tmp_path)


def test_kernels_of_random_lines_equal_numpy(tmp_path: Path) -> None:
    found = [random_body(seed) for seed in range(share_of(600))]
    cases = [Case(*each, shift=8 * (seed % 2)) for seed, each in enumerate(found) if each is not None]
    assert len(cases) > len(found) / 2
    check(cases, tmp_path)


def test_bodies_are_read_back() -> None:
    for op, types in CASES:
        again = FusedElementwise(op.body, op.returns)
        given = tuple(map(tensor, types))
        assert again == op
        assert expanded_steps(again, given) == expanded_steps(op, given)


def test_packs_that_lie_side_by_side_are_loaded_as_one() -> None:
    memory = placed(np.zeros(4096, np.float32), 0)

    def read(offset: int, *steps: int, begin: int = 0, end: int = 64) -> MovedRead:
        return MovedRead(F32, memory, Offset(offset, steps), ((Offset(0, (0, 1)), begin, end),))

    assert read(32, 128, 1).is_packed(4)
    assert read(-32, 128, 1, begin=32).is_packed(4)
    assert not read(2, 128, 1).is_packed(4)  # it begins within a pack
    assert not read(32, 130, 1).is_packed(4)  # rows do
    assert not read(32, 128, 1, begin=30).is_packed(4)  # the condition changes within a pack
    assert not read(32, 128, 2).is_packed(4)
    assert not read(32, 128, -1).is_packed(4)


def test_rotary_embeddings_load_in_packs() -> None:
    types = tuple(map(tensor, ("BFloat16 2 4 16 64", "Float32 16 64", "Float32 16 64")))
    moved = expanded_steps(rotary(2, 4, 16, 64), types).moved
    assert [each.operand for each in moved] == [0, 0, -1]
    assert sum(loaded_bytes(expanded_steps(rotary(2, 4, 16, 64), types), types)) == sum(t.nbytes for t in types)


def test_results_do_not_lie_in_what_is_read_elsewhere() -> None:
    assert moved_operands(rotary(2, 8)) == {0}
    assert moved_operands(moved([(made("Mul"), "x0 x1")])) == set()
    through = [(made("Mul"), "x0 x1"), (part((8,), 0, 7, 0, -1), "t0"), (made("Add"), "t1 x2")]
    assert moved_operands(moved(through)) == {0, 1}


def test_memory_is_loaded_in_sectors() -> None:
    given = tensor("BFloat16 1024 1024")
    shape = given.shape
    shares = [
        (made("Transpose", perm=(1, 0)), 16), (part(shape, 1, 0, 1024, 2), 1), (part(shape, 0, 0, 512), 0.5),
    ]  # fmt: skip
    for op, share in shares:
        expanded = expanded_steps(moved([(op, "x0"), (made("Neg"), "t0")]), (given,))
        assert loaded_bytes(expanded, [given]) == [share * given.nbytes]


@pytest.mark.parametrize(("lines", "types", "what"), [
    ([(made("ReduceSum", axis=(1,)), "x0"), (part((8,), 0, 0, 4), "t0")], ("Float32 8 4",), "computes no single ones"),
    ([(made("Softmax"), "x0"), (part((8, 4), 0, 0, 4), "t0")], ("Float32 8 4",), "computes no single ones"),
    ([(made("Reshape", shape=(2, 5)), "x0"), (made("ReverseV2", axis=(0,)), "t0"), (made("Reshape", shape=(10,)), "t1"),
      (made("ReverseV2", axis=(0,)), "t2")], ("Float32 10",), "no sums of steps"),
    ([(made("StridedSliceGrad", begin=(0,), end=(8,), strides=(2,), shape=(8,)), "x0")], ("Float32 4",), "no sums of"),
    ([(part((8,), 0, 0, 4), "x0"), (made("Neg"), "x0")], ("Float32 8",), "has shape"),
])  # fmt: skip
def test_what_is_no_kernel_is_refused(lines: Lines, types: tuple[str, ...], what: str) -> None:
    given: tuple[TensorType, ...] = tuple(map(tensor, types))
    with pytest.raises(MspcError, match=what):
        moved(lines, *range(len(lines))).infer(*given)


# Rows that find no room in a block, and ends where there are no rows, are told as on a CPU.


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([2, 9, 9, 12], "12 rows of part 1 of the batch go to the experts of rank 1 of 2, .* room for 7"),
        ([2, 4, 99, 12], "an expert's rows end at 99, but there are 24 rows"),
    ],
)
def test_what_does_not_fit_is_told(ends: list[int], message: str, tmp_path: Path) -> None:
    op = ExpertPlaces(outer=2, parts=2, room=7)
    given = np.array(ends, np.int64), np.arange(24, dtype=np.int32)
    types = [TensorType(dtype_of(array.dtype), array.shape) for array in given]
    results = [np.empty(t.shape, t.dtype.numpy) for t in element_types(op.infer(*types))]
    launch = op.launch(Emulator(tmp_path), results, *given)  # type: ignore[arg-type]  # it plays a device
    assert launch is not None
    for run in (launch, lambda: op.run(NumPy(), *given)):  # type: ignore[arg-type]  # no communicator is needed
        with pytest.raises(IndexError, match=message):
            run()
