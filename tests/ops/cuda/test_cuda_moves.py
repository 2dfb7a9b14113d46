"""CUDA kernels of fused operators that read elements at other places: run by g++ against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import element_types
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.cuda.elementwise import MovedRead, Offset
from mspc.ops.fused.body import BodyLine
from mspc.ops.fused.elementwise import FusedElementwise, expanded_steps, loaded_bytes, moved_operands
from mspc.ops.nn.experts import ExpertPlaces
from mspc.ops.op import Op, load_operators
from tests.ops.cuda.cuda_cases import NumPy
from tests.ops.cuda.cuda_chains import Case, tensor
from tests.ops.cuda.cuda_emulator import Emulator, placed
from tests.ops.cuda.random_moves import made, random_body
from tests.ops.cuda.test_cuda_elementwise import check
from tests.shares import share_of

Lines = list[tuple[Op, str]]
BF16, F32 = dtype_of("BFloat16"), dtype_of("Float32")


def fused(lines: Lines, *returns: int) -> FusedElementwise:
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
    return fused([
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
    (fused([(part((9,), 0, 7, 0, -2), "x0"), (made("Exp"), "t0")]), ("Float32 9",)),
    (fused([(part((9,), 0, 2, 3), "x0"), (made("Exp"), "t0")]), ("Float16 9",)),
    (fused([(part((1,), 0, 0, 1), "x0"), (made("Neg"), "t0")]), ("Int64 1",)),
    (fused([(made("StridedSlice", begin=(2,), end=(2,), strides=(1,)), "x0"), (made("Neg"), "t0")]), ("Float32 5",)),
    (fused([(made("Exp"), "x0"), (made("Pad", paddings=((1, 2), (3, 0))), "t0"), (made("Add"), "t1 x1")]),
     ("Float32 5 7", "Float32 10")),
    (fused([(made("PadV3", paddings=(2, 1)), "x0 x1"), (made("Exp"), "t0")]), ("Float32 3 5", "Float32")),
    (fused([(made("Tile", multiples=(2, 3)), "x0"), (made("Exp"), "t0")]), ("Float32 5 4",)),
    (fused([(made("RepeatInterleaveInt", repeats=3, dim=1), "x0"), (made("Exp"), "t0")]), ("Float16 5 4",)),
    (fused([(made("ReverseV2", axis=(0, 1)), "x0"), (made("Exp"), "t0")]), ("BFloat16 5 8",)),
    (fused([(made("Stack", axis=1), "x0 x1"), (made("ReduceSum", axis=(0,)), "t0")]), ("Float32 5 4", "Float32 5 4")),
    (fused([(made("Mul"), "x0 x1"), (made("Transpose", perm=(0, 2, 1, 3)), "t0"),
            (made("ReduceSum", axis=(0, 1)), "t1")], 1, 2), ("Float32 2 4 16 8", "Float32 16 8")),
    (fused([(made("Transpose", perm=(0, 2, 1, 3)), "x0"), (made("Reshape", shape=(5, 6)), "t0"),
            (made("Add"), "t1 x1")]), ("Float32 2 1 3 5", "Float32 5 1")),
    (fused([(made("BroadcastTo", shape=(6, 4)), "x0"), (part((6, 4), 0, 1, 5), "t0"), (made("Neg"), "t1")]),
     ("Float32 1 4",)),
    (fused(normalised(part((256, 128), 1, 32, 96), (256, 64))), ("Float32 256 128",)),
    (fused(normalised(part((256, 128), 1, 96, 32, -1), (256, 64))), ("BFloat16 256 128",)),
    (fused(normalised(made("Transpose", perm=(0, 2, 1, 3)), (4, 50, 6, 8))), ("BFloat16 4 6 50 8",)),
    (fused(normalised(made("Pad", paddings=((1, 2), (3, 2))), (133, 3005))), ("Float32 130 3000",)),
    (fused([(made("Concat", axis=1), "x0 x1"), (made("Softmax"), "t0")]), ("BFloat16 130 8", "BFloat16 130 16")),
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
    assert moved_operands(fused([(made("Mul"), "x0 x1")])) == set()
    through = [(made("Mul"), "x0 x1"), (part((8,), 0, 7, 0, -1), "t0"), (made("Add"), "t1 x2")]
    assert moved_operands(fused(through)) == {0, 1}


def test_memory_is_loaded_in_sectors() -> None:
    given = tensor("BFloat16 1024 1024")
    shape = given.shape
    shares = [
        (made("Transpose", perm=(1, 0)), 16), (part(shape, 1, 0, 1024, 2), 1), (part(shape, 0, 0, 512), 0.5),
    ]  # fmt: skip
    for op, share in shares:
        expanded = expanded_steps(fused([(op, "x0"), (made("Neg"), "t0")]), (given,))
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
        fused(lines, *range(len(lines))).infer(*given)


# Rows that find no room in a block, and ends where there are no rows, are told as on a CPU.


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ([2, 9, 9, 12], "12 rows of part 1 of the batch go to the experts of rank 1 of 2, .* room for 7"),
        ([2, 4, 99, 12], "an expert's rows end at 99, but there are 24 rows"),
    ],
)
def test_what_does_not_fit_is_told(ends: list[int], message: str, tmp_path: Path) -> None:
    load_operators()
    op = ExpertPlaces(outer=2, parts=2, room=7)
    given = np.array(ends, np.int64), np.arange(24, dtype=np.int32)
    types = [TensorType(dtype_of(array.dtype), array.shape) for array in given]
    results = [np.empty(t.shape, t.dtype.numpy) for t in element_types(op.infer(*types))]
    launch = op.launch(Emulator(tmp_path), results, *given)  # type: ignore[arg-type]  # it plays a device
    assert launch is not None
    for run in (launch, lambda: op.run(NumPy(), *given)):  # type: ignore[arg-type]  # no communicator is needed
        with pytest.raises(IndexError, match=message):
            run()
