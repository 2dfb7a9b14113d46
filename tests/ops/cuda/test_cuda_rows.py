"""CUDA kernels of operators that are not elementwise: run by g++ against NumPy, compiled by nvcc.

Kernels along rows read and write matrices with gaps between their rows, and touch nothing else.
"""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, DType, TensorType, dtype_of
from mspc.ops.cuda import rows_by_number
from mspc.ops.cuda.moves import RowLookup
from mspc.ops.cuda.norms import fits
from mspc.ops.cuda.rows_by_number import NamedRows
from mspc.ops.nn.norm import LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad
from tests.gpu.emulated import EmulatedGpu
from tests.grouped import each
from tests.operators import EdgeProducts, EdgeSums, FusedElementwise, FusedLayerNorm, FusedLayerNormGrad, OrderRows
from tests.ops.cuda.cuda_cases import TOLERANCE, Case, NumPy, all_cases
from tests.ops.cuda.cuda_emulator import NEEDED, NVCC, QUICKLY, Emulator, aligned, compiled_by_nvcc, placed
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


BODY = (
    "Cast(x0, dst_type=Float32)", "Add(t0, x1)", "LogSoftmax(t1, axis=-1)", "Exp(t2)", "Mul(t3, x1)",
    "Cast(t4, dst_type=BFloat16)",
)  # fmt: skip
MEMORY = (227 << 10, 227 << 9, 48 << 10)
"""Bytes of shared memory of a block."""
WAITING = {33_000: [2, 1, 0], 40_001: [1, 1, 0]}
"""Lengths of rows, and how many of the two operands find room there."""


class Texts(Emulator):
    """A device that keeps the texts of its kernels."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.texts: list[str] = []

    def kernel(self, source: str, name: str) -> Any:
        self.texts.append(source)
        return super().kernel(source, name)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_numbers_are_the_same_wherever_rows_wait(tmp_path: Path) -> None:
    device, op = Texts(tmp_path), FusedElementwise(BODY, (5,))
    random = np.random.default_rng(1)
    made: list[tuple[Any, list[Any], Any]] = []
    for length in WAITING:
        x = random.standard_normal((3, length)).astype(BFLOAT16.numpy)
        added = random.standard_normal((3, length)).astype(FLOAT32.numpy)
        outs: list[Any] = []
        launches: list[Any] = []
        for device.block_memory in MEMORY:
            outs.append(x.copy())
            launches.append(op.launch(device, outs[-1], outs[-1], added))  # in the operand's place
        texts = device.texts[-len(MEMORY) :]
        assert [len(set(re.findall(r"memory \+ \d+", text))) for text in texts] == WAITING[length]
        made.append((op.run(NUMPY, x, added), outs, launches))
    for wanted, outs, launches in made:
        for launch in launches:
            launch()
        assert all(np.array_equal(outs[0], out) for out in outs[1:])
        assert np.allclose(outs[0].astype(np.float64), wanted.astype(np.float64), 1e-2, 1e-3)


LONG_SOFTMAX = (
    "ReduceMax(x0, keep_dims=true, axis=(1))", "Sub(x0, t0)", "Exp(t1)", "ReduceSum(t2, keep_dims=true, axis=(1))",
    "Log(t3)", "Sub(t1, t4)", "ReduceMean(t2, keep_dims=false, axis=(1))",
)  # fmt: skip


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_the_largest_and_the_sum_below_it_are_one_pass(tmp_path: Path) -> None:
    """Elements that grow, are minus infinity, at the front, everywhere, infinite or no number."""
    device, op = Texts(tmp_path), FusedElementwise(LONG_SOFTMAX, (5, 0, 3, 6))
    x = np.random.default_rng(2).standard_normal((6, 40_001)).astype(np.float32)
    x[0] = np.sort(x[0]) * 40
    x[1, :30_000] = -np.inf
    x[2] = -np.inf
    x[3, 7] = np.inf
    x[4, 20_000] = np.nan
    with np.errstate(all="ignore"):
        wanted = op.run(NUMPY, x.astype(np.float64))
    outs = [np.zeros(array.shape, np.float32) for array in wanted]
    launch: Any = op.launch(device, outs, x)
    assert len(re.findall("for \\(int k = 0; k < PACKS", device.texts[0])) == 2  # the other for the mean and the result
    assert "Largest::of" in device.texts[0]
    launch()
    for a, b in zip(wanted, outs, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("length", [40_001, 40_000])
@pytest.mark.parametrize("off", [0, 2])
def test_sums_of_one_class_read_its_column(tmp_path: Path, length: int, off: int) -> None:
    """Cross entropy and its gradient, with an ignored label and one at each end; all columns count if `off` is 2."""
    classes = f"axis=1, depth={length}, offset=3"
    loss = FusedElementwise((
        "LogSoftmax(x0, axis=1)", f"OneHot(x1, x2, x3, {classes})", "Greater(t1, x4)", "Select(t2, t0, x4)",
        "ReduceSum(t3, keep_dims=false, axis=(1))",
    ), (4,))  # fmt: skip
    gradient = FusedElementwise((
        f"OneHot(x1, x2, x3, {classes})", "Greater(t0, x4)", "Select(t1, x5, x4)", "LogSoftmaxGrad(x0, t2, axis=1)",
    ), (3,))  # fmt: skip
    x = np.random.default_rng(3).standard_normal((4, length)).astype(np.float32)
    labels, one, zero = np.array([-100, 3, length + 2, 777]), np.ones((), np.float32), np.zeros((), np.float32)
    scale = np.arange(1, 5, dtype=np.float32)[:, None]
    device, inputs = Texts(tmp_path), (x, labels, one, np.full((), off, np.float32), zero)
    for op, given in ((loss, inputs), (gradient, (*inputs, scale))):
        out = np.zeros_like(wanted := op.run(NUMPY, *given))
        launch: Any = op.launch(device, out, *given)
        launch()
        np.testing.assert_allclose(out, wanted, 2e-5, 1e-5)
        assert len(re.findall(r"for \(int k = begin\d; k < end\d", device.texts[-1])) == 1


EPSILON = 1e-5
NORM_CASES = [
    # rows, columns, the element types of x and of the result, whether there is an addend
    (5, 64, FLOAT32, FLOAT32, True),
    (37, 256, FLOAT32, FLOAT32, False),
    (67, 1024, BFLOAT16, BFLOAT16, True),
    (35, 1024, BFLOAT16, FLOAT32, True),
    (3, 96, FLOAT16, FLOAT16, True),
    (1, 32, BFLOAT16, FLOAT32, False),
    (33, 160, FLOAT64, FLOAT64, True),
    (19, 1312, FLOAT16, FLOAT16, True),  # threads without a last pack, rows of two warps
    (17, 2080, BFLOAT16, BFLOAT16, False),  # of four
    (9, 8160, BFLOAT16, BFLOAT16, False),  # of eight
    (5, 8160, FLOAT64, FLOAT64, True),  # of sixteen, with room for one row on its way
]


def filled(device: EmulatedGpu, shape: tuple[int, ...], dtype: DType, seed: int) -> Any:
    array = device.empty(shape, dtype.numpy)
    array[...] = np.abs(np.random.default_rng(seed).standard_normal(shape)) + 0.1
    return array


def check(found: Any, wanted: Any, dtype: DType) -> None:
    # Two roundings may differ by a unit each.
    error = {"BFloat16": 2**-6, "Float16": 2**-9, "Float32": 2e-5, "Float64": 1e-11}[dtype.name]
    np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=error, atol=error)


class Work:
    """Operators that are launched, one after the other, once all are prepared."""

    def __init__(self, device: EmulatedGpu) -> None:
        self.device = device
        self.launches: list[tuple[Any, Any, Any]] = []

    def add(self, op: Any, inputs: list[Any], types: list[tuple[tuple[int, ...], DType]], wanted: Any = None) -> None:
        out = tuple(self.device.empty(shape, dtype.numpy) for shape, dtype in types)
        launch = op.launch(self.device, out, *inputs)
        assert launch is not None
        self.launches.append((launch, out, wanted or op.run(NUMPY, *inputs)))

    def check(self) -> None:
        for launch, out, wanted in self.launches:
            launch()
            for got, array in zip(out, wanted, strict=True):
                check(got, array, dtype_of(got.dtype))


def gradients(device: EmulatedGpu, rows: int, columns: int, source: DType, target: DType, adds: bool) -> list[Any]:
    """The operands of FusedLayerNormGrad."""
    computing = FLOAT64 if source == FLOAT64 else FLOAT32
    full, row, column = (rows, columns), (rows, 1), (columns,)
    kinds = [(full, source), (full, source), (row, computing), (row, computing), (column, computing), (full, target)]
    return [filled(device, shape, dtype, seed) for seed, (shape, dtype) in enumerate(kinds[: 5 + adds])]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize("eager", [False, True], ids=["late copies", "early copies"])
def test_gradients_equal_numpys(tmp_path: Path, eager: bool) -> None:
    device = EmulatedGpu(tmp_path)
    device.eager = eager
    work = Work(device)
    for rows, columns, source, target, adds in NORM_CASES:
        inputs = gradients(device, rows, columns, source, target, adds)
        kind = dtype_of(inputs[4].dtype)
        types = [((rows, columns), target), ((columns,), kind), ((columns,), kind)]
        work.add(FusedLayerNormGrad(EPSILON, target, adds), inputs, types)
        # The gradient of the result is a sum, of terms of two types.
        inputs += [filled(device, (rows, columns), other, 9) for other in (FLOAT64 if source == FLOAT64 else FLOAT32,)]
        work.add(FusedLayerNormGrad(EPSILON, target, adds, True), inputs, types)
    # A tensor that begins where a thread can only copy one element.
    inputs = gradients(device, 3, 96, FLOAT16, FLOAT16, False)
    inputs[1] = placed(inputs[1], 2)
    work.add(FusedLayerNormGrad(EPSILON, FLOAT16), inputs, [((3, 96), FLOAT16), ((96,), FLOAT32), ((96,), FLOAT32)])
    work.check()


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_a_norm_is_launched_whatever_its_width(tmp_path: Path) -> None:
    device = EmulatedGpu(tmp_path)
    work = Work(device)
    for rows, columns, adds in ((5, 64, False), (5, 72, True), (3, 1056, True), (2, 8160, False)):
        full, row, column = (rows, columns), (rows, 1), (columns,)
        shapes = [full, *[full] * adds, column, column]
        inputs = [filled(device, s, BFLOAT16 if s == full else FLOAT32, seed) for seed, s in enumerate(shapes)]
        types = [(full, BFLOAT16), (row, FLOAT32), (row, FLOAT32), *[(full, BFLOAT16)] * adds]
        # The rounded sum is normalised.
        total = inputs[0] + inputs[1] if adds else inputs[0]
        wanted = FusedLayerNorm(EPSILON, BFLOAT16).run(NUMPY, total, *inputs[-2:])
        work.add(FusedLayerNorm(EPSILON, BFLOAT16, adds), inputs, types, (*wanted, *[total] * adds))
    work.check()


@pytest.mark.parametrize(("columns", "target", "source"), [(72, FLOAT32, FLOAT32), (64, FLOAT32, FLOAT16)])
def test_gradients_that_no_kernel_takes(tmp_path: Path, columns: int, target: DType, source: DType) -> None:
    device = EmulatedGpu(tmp_path)
    inputs = gradients(device, 5, columns, FLOAT32, source, True)
    out = tuple(device.empty(shape, dtype.numpy) for shape, dtype in
                [((5, columns), target), ((columns,), FLOAT32), ((columns,), FLOAT32)])  # fmt: skip
    assert FusedLayerNormGrad(EPSILON, target, True).launch(device, out, *inputs) is None


def test_only_rows_of_whole_warps_fit() -> None:
    assert [n for n in (31, 32, 48, 96, 768, 1000, 1024, 8192, 8224, 16384) if fits(n)] == [32, 96, 768, 1024, 8192]


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_norms_of_halves_with_parameters_of_float32(tmp_path: Path) -> None:
    device = EmulatedGpu(tmp_path)
    work = Work(device)
    full, row = (5, 64), (5, 1)
    x, dout = (filled(device, full, FLOAT16, seed) for seed in (1, 2))
    gamma, beta = (filled(device, (64,), FLOAT32, seed) for seed in (3, 4))
    mean, variance = (filled(device, row, FLOAT32, seed) for seed in (5, 6))
    wide, statistic = x.astype(np.float32), (row, FLOAT32)
    norm, root = LayerNorm(-1, -1, EPSILON), RmsNorm(EPSILON)
    work.add(norm, [x, gamma, beta], [(full, FLOAT16), statistic, statistic], norm.run(NUMPY, wide, gamma, beta))
    work.add(root, [x, gamma], [(full, FLOAT16), statistic], root.run(NUMPY, wide, gamma))
    for op, operands in ((LayerNormGrad(-1, EPSILON), [mean, variance, gamma]), (RmsNormGrad(), [variance, gamma])):
        out = device.empty(full, FLOAT16.numpy)
        launch = op.launch(device, out, dout, x, *operands)
        work.launches.append((launch, (out,), (op.run(NUMPY, dout.astype(np.float32), wide, *operands),)))
    work.check()


needs_compiler = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
SIZES = ((3, 4097), (70, 9000), (511, 5000), (512, 5000), (40000, 9000), (2**31 - 3, 4096), (300, 0), (300, 1), (1, 90))
"""(places, names): one, two and four digits."""


def ids_of(size: int, count: int, skewed: bool, dtype: Any, seed: int = 0) -> Any:
    """Ids of which some are outside of [0, size) or count from the end; if skewed, few places have most."""
    random = np.random.default_rng((size, count, seed))
    found = (size * random.random(count) ** (9 if skewed else 1)).astype(dtype)
    found[random.random(count) < 0.1] -= dtype(size)
    found[random.random(count) < 0.05] = -size - 1
    return found


@needs_compiler
def test_names_are_sorted_by_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_by_number, "_MAX_COUNTED", 0)
    device: Any = Emulator(tmp_path)
    made: list[tuple[Any, ...]] = []
    for number, (size, count) in enumerate(SIZES):
        groups: list[NamedRows] = []
        expected: list[Any] = []
        for skewed in (False, True):
            ids = placed(ids_of(size, 2 * count, skewed, (np.int32, np.int64)[number % 2]).reshape(2, count))
            lookup = RowLookup(2, 1, size, 1, count, 0, size)
            groups.append(NamedRows(lookup, ids, ids, ids))
            ids = ids.astype(np.int64)
            places = np.where(ids < 0, ids + size, ids)
            places[(places < 0) | (places >= size)] = 0x7FFFFFFE
            expected.append(np.sort(places << 32 | np.arange(count), axis=1))
        names = np.zeros((2, 2, count), np.uint64)
        memory = aligned(rows_by_number.sort_bytes(4, count))
        table = rows_by_number.table_of(device, groups, [0, 0], [0, 0])
        launch = rows_by_number.sorting(device, groups, table, memory, names)
        made.append((names, np.array(expected), launch, groups))  # the table has only addresses
    for names, wanted, launch, _ in made:
        launch()
        np.testing.assert_array_equal(names, wanted.astype(np.uint64))


EDGES = (
    # nodes that edges leave and enter, edges, elements of a row, weights of an edge, types of rows, weights and results
    (40, 30, 900, (24,), 1, BFLOAT16, FLOAT32, FLOAT32),
    (40, 30, 900, (4, 12), 4, FLOAT32, FLOAT32, FLOAT32),
    (40, 3, 3000, (64,), 1, FLOAT32, BFLOAT16, BFLOAT16),
    (90, 700, 300, (7,), 7, FLOAT64, FLOAT64, FLOAT64),
    (90, 70, 1, (8,), 0, BFLOAT16, FLOAT32, BFLOAT16),
    (90, 70, 0, (8,), 1, FLOAT32, FLOAT32, FLOAT32),
    (40, 600, 5000, (64,), 1, FLOAT32, FLOAT32, FLOAT32),  # enough threads without sharing
)


@needs_compiler
@pytest.mark.parametrize("skewed", [False, True])
def test_sums_and_products_over_edges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skewed: bool) -> None:
    """Their sources count from the end or are of another slice of the table; places of no row are left out."""
    device: Any = Emulator(tmp_path)
    random = np.random.default_rng(1)
    checks: list[tuple[Any, Any, Any]] = []
    for number, (sources, targets, count, shape, heads, of_rows, of_weights, of_result) in enumerate(EDGES):
        monkeypatch.setattr(rows_by_number, "_MAX_COUNTED", (0, 1 << 15)[number % 2])
        monkeypatch.setattr(rows_by_number, "_SMALL", (4, 4, 32)[number % 3])
        ids = placed(ids_of(targets, count, skewed, np.int32))
        left = placed(random.integers(-3 * sources, 3 * sources, count).astype(np.int64))
        table, other = (placed(random.standard_normal((n, *shape)).astype(of_rows.numpy)) for n in (sources, targets))
        weights = [placed(random.standard_normal((count, heads)).astype(of_weights.numpy))] if heads else []
        order = OrderRows(targets)
        edges = EdgeSums((targets, *shape), of_result, weighted=bool(heads), offset=sources, total=3 * sources)
        combine = ("maximum", "minimum", "add")[number % 3]
        plain = EdgeSums((targets, *shape), None, looks_up=False, weighted=bool(heads), combine=combine)
        products = EdgeProducts((count, max(1, heads)), of_result, ((sources, 3 * sources), (0, 0)))
        rows = placed(random.standard_normal((count, *shape)).astype(of_rows.numpy))
        ordered = placed(np.zeros(count, np.uint64)), placed(np.zeros(targets + 1, np.int32))
        cases: list[tuple[Any, Any, tuple[Any, ...]]] = [(order, ordered, (ids,))]
        for op, inputs in (
            (edges, (table, *ordered, left, *weights)), (plain, (rows, *ordered, *weights)),
            (products, (table, left, other, ids)), (products, (table, left, other, ids, ordered[0])),
        ):  # fmt: skip
            type = op.infer(*[TensorType(dtype_of(x.dtype), x.shape) for x in inputs])
            cases.append((op, placed(np.full(type.shape, 7).astype(type.dtype.numpy)), inputs))
        for op, out, inputs in cases:
            checks.append((op, out, (inputs, op.launch(device, out, *inputs))))
    for op, out, (inputs, launch) in checks:
        if launch is not None:
            launch()
        wide = [x.astype(np.float64) if dtype_of(x.dtype).is_float else x for x in inputs]
        expected = replace(op, dst_type=None).compute(np, *wide) if hasattr(op, "dst_type") else op.compute(np, *wide)
        for made, wanted in zip(each_of(out), each_of(expected), strict=True):
            largest = float(np.abs(wanted[np.isfinite(wanted)]).max(initial=1))
            bound = TOLERANCE.get(dtype_of(made.dtype).name, 0) * largest
            np.testing.assert_allclose(made.astype(np.float64), wanted.astype(np.float64), bound, bound, True, str(op))


def each_of(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
