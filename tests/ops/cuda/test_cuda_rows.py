"""CUDA kernels of operators that are not elementwise: run by g++ against NumPy, compiled by nvcc.

Kernels along rows read and write matrices with gaps between their rows, and touch nothing else.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType
from mspc.ops.fused.elementwise import FusedElementwise
from tests.grouped import each
from tests.ops.cuda.cuda_cases import Case, NumPy, all_cases
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, QUICKLY, Emulator, compiled_by_nvcc, placed
from tests.shares import is_taken

CASES = {case.name: case for place, case in enumerate(all_cases()) if is_taken(place, 2)}


class Prepared(dict[str, Any]):
    """(inputs, results, launch) of every case."""

    def __repr__(self) -> str:  # pytest prints it at every failure
        return f"<{len(self)} cases>"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Every case; all kernels are compiled together."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Emulator(tmp_path_factory.mktemp("kernels"), step=NumPy.step)
    found = Prepared()
    for name, case in CASES.items():
        inputs = [placed(x, case.shift * x.itemsize) for x in case.inputs()]
        sevens = [np.full(t.shape, 7).astype(t.dtype.numpy) for t in case.results()]
        made = [placed(x, case.shift * x.itemsize) for x in sevens]
        if case.alias >= 0:
            made[0] = inputs[case.alias]
        found[name] = inputs, made, case.op.launch(device, case.outs(made), *inputs)
    return found


@pytest.mark.parametrize("operator", dict.fromkeys(name.split()[0] for name in CASES))
def test_kernels_equal_numpy(prepared: Prepared, operator: str) -> None:
    def check(name: str) -> None:
        case = CASES[name]
        inputs, made, launch = prepared[name]
        assert launch is not None
        with np.errstate(all="ignore"):
            expected = case.expected([np.array(x) for x in inputs])
        launch()
        case.check(made, expected)

    each(check, [(name,) for name in CASES if name.split()[0] == operator])


def test_random_numbers_follow_the_step(tmp_path: Path) -> None:
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Emulator(tmp_path, step=1)
    case = next(case for name, case in CASES.items() if name.startswith("UniformReal"))
    (made,) = [np.zeros(t.shape, t.dtype.numpy) for t in case.results()]
    launch: Any = case.op.launch(device, made)
    drawn: list[Any] = []
    for step in (1, 2, 1):
        device.step[0] = step
        launch()
        drawn.append(made.copy())
    assert (drawn[0] == drawn[2]).all()
    assert (drawn[0] != drawn[1]).mean() > 0.99


def numbers_of(kernel: tuple[str, str]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", kernel[0])]


@pytest.mark.thorough
@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_kernels_compile_for_the_gpu(tmp_path: Path) -> None:
    device = Emulator(tmp_path, multiprocessors=132)
    for name, case in CASES.items():
        if " sample " in name and not name.endswith("sample 0 Float32"):
            continue
        made = [np.zeros(t.shape, t.dtype.numpy) for t in case.results()]
        case.op.launch(device, case.outs(made), *case.inputs())
    # If samples differ in numbers alone, the one whose are the largest is taken: shared memory must do for it.
    sources = {re.sub(r"\d+", "0", source): source for source, _ in sorted(device.sources, key=numbers_of)}
    compiled_by_nvcc(tmp_path, sources.values(), "-w", *QUICKLY)


def test_threads_that_wait_for_ever_are_found(tmp_path: Path) -> None:
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Emulator(tmp_path)
    kernel = device.kernel('extern "C" __global__ void stuck() { if (threadIdx.x < 7) __syncthreads(); }', "stuck")
    with pytest.raises(AssertionError, match="threads wait for ever in stuck"):
        kernel(1, 32, [])


def test_a_thread_that_takes_more_than_its_stack_is_found(tmp_path: Path) -> None:
    """It writes below its stack, where other memory of the process may lie: 67,000 bytes of 65,536."""
    if NEEDED is None:
        pytest.skip("needs g++")
    device = Emulator(tmp_path)
    fill = "volatile char large[67000]; for (int i = 0; i < 67000; ++i) large[i] = 1; __syncthreads();"
    kernel = device.kernel(f'extern "C" __global__ void deep() {{ {fill} }}', "deep")
    with pytest.raises(AssertionError, match="a thread of deep took more than its stack"):
        kernel(1, 32, [])


def test_case_names_say_what_they_are() -> None:
    assert all(isinstance(case, Case) for case in CASES.values())


# Kernels along rows add up totals of columns as they go from row to row.


NUMPY: Any = SimpleNamespace(xp=np)  # all that the operators ask for
NORM = (
    "Cast(x0, dst_type=Float32)", "Mul(x1, x2)", "Mul(t0, t1)", "Mul(t0, x3)", "Mul(t3, x1)",
    "ReduceMean(t4, keep_dims=true, axis=(2))", "Mul(t1, t5)", "Sub(t3, t6)", "Cast(t7, dst_type=BFloat16)",
    "ReduceSum(t2, keep_dims=false, axis=(0, 1))", "ReduceMean(t0, keep_dims=false, axis=(0, 1))",
    "ReduceMax(x1, keep_dims=false, axis=(0, 1))",
)  # fmt: skip
"""A norm's gradients, of its scale and of its bias too: of x0, the result's, x1, the operand, x2, 1 / deviation."""
SHAPES = ((3, 70, 24), (2, 20, 96), (5, 7, 33), (2, 5, 1536), (2, 9, 1000), (1, 2, 8))


class Names(Emulator):
    """A device that keeps the names of its kernels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, multiprocessors=1)
        self.names: list[str] = []

    def kernel(self, source: str, name: str) -> Any:
        self.names.append(name)
        return super().kernel(source, name)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_totals_of_columns_come_with_the_rows(tmp_path: Path) -> None:
    device, op = Names(tmp_path), FusedElementwise(NORM, (7, 8, 9, 10, 11))
    random = np.random.default_rng(1)
    made: list[tuple[Any, Any, Any]] = []
    for shape in SHAPES:
        dout = random.standard_normal(shape).astype(BFLOAT16.numpy)
        x, rows = (random.standard_normal(s).astype(np.float32) for s in (shape, (*shape[:2], 1)))
        scale = random.standard_normal(shape[2:]).astype(FLOAT32.numpy)
        wanted = op.run(NUMPY, dout, x.copy(), rows, scale)
        outs = (x, *(np.zeros_like(array) for array in wanted[1:]))  # the first lies where an operand does
        made.append((wanted, outs, op.launch(device, outs, dout, x, rows, scale)))
    assert device.names == ["row_chain", *["column_totals"] * 2] * len(SHAPES)  # sums and a mean; a maximum
    for wanted, outs, launch in made:
        launch()
        for a, b in zip(wanted, outs, strict=True):
            bound = 1e-2 if a.itemsize == 2 else 1e-5
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), bound, bound)


ROWS = 5
SOFTMAX = (
    "Cast(x0, dst_type=Float32)", "Add(t0, x1)", "LogSoftmax(t1, axis=-1)", "Exp(t2)", "Mul(t3, x2)",
    "Cast(t4, dst_type=KIND)",
)  # fmt: skip
GAPS = ((8, 8, False), (8, 8, True), (8, 24, False), (8, 0, False), (0, 8, False))
"""Elements behind a row of what is read and of what is made, beyond the next multiple of eight; and whether it is made
in the operand's place."""


def matrix(kind: DType, columns: int, gap: int, seed: int) -> Any:
    """A matrix in memory that holds NaN between its rows."""
    pitch = -(-columns // 8) * 8 + gap if gap else columns
    memory = np.full(ROWS * pitch + 64, np.nan).astype(kind.numpy)
    begin = -memory.ctypes.data % 64 // memory.itemsize
    whole = memory[begin : begin + ROWS * pitch].reshape(ROWS, pitch)
    whole[:, :columns] = np.random.default_rng(seed).standard_normal((ROWS, columns)).astype(kind.numpy)
    return whole[:, :columns]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("kind", [BFLOAT16, FLOAT16, FLOAT32], ids=str)
def test_kernels_equal_those_of_contiguous_rows(kind: DType, tmp_path: Path) -> None:
    device = Emulator(tmp_path)
    device.takes_gaps = True
    op = FusedElementwise(tuple(line.replace("KIND", kind.name) for line in SOFTMAX), (5,))
    launches: list[tuple[Any, Any, Any]] = []
    for columns in (9, 130, 1001, 5003):
        for gap_in, gap_out, in_place in GAPS:
            x, out = matrix(kind, columns, gap_in, 1), matrix(kind, columns, gap_out, 2)
            bias = np.random.default_rng(3).standard_normal(columns).astype(np.float32)
            scale = np.random.default_rng(4).standard_normal((ROWS, 1)).astype(np.float32)
            wanted = op.run(NUMPY, np.ascontiguousarray(x), bias, scale)
            launch = op.launch(device, x if in_place else out, x, bias, scale)
            assert launch is not None
            launches.append((launch, x if in_place else out, wanted))
    tolerance = 1e-6 if kind == FLOAT32 else 1e-2
    for launch, out, wanted in launches:
        launch()
        assert np.allclose(out.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance / 10)
