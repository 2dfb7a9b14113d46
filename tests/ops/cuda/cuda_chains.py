"""Cases for the generated kernels of fused chains, reductions and updates: on the CPU by emulation, and on a GPU."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from mspc.ops.bases import Elementwise
from mspc.ops.optim.optimizer import Update
from tests.graphs import REGISTRY, DType, Op, TensorType, dtype_of, element_types
from tests.operators import AssignOnHost, FusedElementwise, FusedUpdate, GroupedUpdate

TOLERANCE = {"Float64": 1e-11, "Float32": 4e-6, "Float16": 1e-3, "BFloat16": 8e-3}
FLOATS = (-np.inf, -1e30, -50, -7.5, -2.5, -1, -0.5, -1e-3, -0.0, 0.0, 1e-3, 0.5, 1, 1.5, 2.5, 7.5, 50, 1e30, np.inf,
          np.nan)  # fmt: skip
FEW_FLOATS = (-np.inf, -2.5, -0.0, 0.5, 1, 3.0, np.inf, np.nan)
INTEGERS = (-128, -7, -3, -2, -1, 0, 1, 2, 3, 7, 127)


class NumPy:
    """The backend that the kernels are compared with."""

    xp = np
    comm = None
    step = 3  # the emulator's


@dataclass(frozen=True)
class Case:
    """An operator on operands of these types, `alias`: the operand whose memory takes result 0, -1 for none.

    values: of the operands; random ones where there are none. shift: bytes by which memory is not aligned.
    """

    op: Op
    types: tuple[TensorType, ...]
    values: tuple[Any, ...] = ()
    alias: int = -1
    shift: int = 0

    def __str__(self) -> str:
        return f"{self.op} {[str(t) for t in self.types]} alias {self.alias} shift {self.shift}"

    def inputs(self) -> list[Any]:
        random = np.random.default_rng(len(self.types))
        return list(self.values) or [_random(random, t) for t in self.types]

    def results(self) -> tuple[TensorType, ...]:
        return element_types(self.op.infer(*self.types))

    def expected(self, inputs: Sequence[Any]) -> list[Any]:
        """NumPy's results for copies of the inputs: the results, and the operands that are changed.

        Halves, and sums, are computed in Float64: the kernels do not round on the way.
        """
        copies = [np.array(x) for x in inputs]
        floats = {t.dtype for t in self.types if t.dtype.is_float}
        widens = len(floats) == 1 and (isinstance(self.op, FusedElementwise) or min(floats, key=_size).itemsize == 2)
        if widens:
            copies = [x.astype(np.float64) if dtype_of(x.dtype) in floats else x for x in copies]
        with np.errstate(all="ignore"):
            found = self.op.kernel(NumPy())(*copies)  # type: ignore[arg-type]  # all that kernels read
        results = [np.asarray(x) for x in (found if isinstance(found, tuple) else (found,))]
        types = (*self.results(), *(self.types[i] for i in self.op.mutates))
        results += [copies[i] for i in self.op.mutates]
        return [x.astype(t.dtype.numpy) if widens else x for x, t in zip(results, types, strict=True)]

    def check(self, made: Sequence[Any], inputs: Sequence[Any]) -> None:
        """Compare the results, and the operands that were changed, with NumPy's. `inputs`: before the launch."""
        for one, other in zip(made, self.expected(inputs), strict=True):
            assert one.dtype == other.dtype, f"{self}: {one.dtype} and not {other.dtype}"
            assert one.shape == other.shape, f"{self}: {one.shape} and not {other.shape}"
            if not dtype_of(one.dtype).is_float:
                np.testing.assert_array_equal(one, other, err_msg=str(self))
                continue
            coarsest = max(TOLERANCE.get(t.dtype.name, 0) for t in (*self.types, *self.results()))
            wanted = other.astype(np.float64)
            # A value that cancels in a sum was rounded at the size of its terms.
            size = max(1.0, float(np.max(np.abs(wanted), initial=0))) if isinstance(self.op, FusedElementwise) else 1.0
            np.testing.assert_allclose(
                one.astype(np.float64), wanted, rtol=coarsest, atol=size * coarsest / 4, err_msg=str(self)
            )


def _between(random: Any, type: TensorType, low: float, high: float) -> Any:
    if type.dtype.kind == "b":
        return random.random(type.shape) < 0.5
    if type.dtype.is_integer:
        return np.asarray(random.integers(int(low), max(int(high), int(low) + 1), type.shape)).astype(type.dtype.numpy)
    return np.asarray(random.uniform(low, high, type.shape)).astype(type.dtype.numpy)


def _size(dtype: DType) -> int:
    return dtype.itemsize


def _random(random: Any, type: TensorType) -> Any:
    if type.dtype.kind == "b":
        return random.random(type.shape) < 0.5
    if type.dtype.is_integer:
        return random.integers(0, 9, type.shape).astype(type.dtype.numpy)
    values = random.uniform(0.1, 1.5, type.shape) * random.choice((-1, 1), type.shape)
    return np.asarray(values).astype(type.dtype.numpy)


def tensor(text: str) -> TensorType:
    """The type that a text like "Float32 8 16" names."""
    name, *sizes = text.split()
    return TensorType(dtype_of(name), tuple(map(int, sizes)))


def elementwise_operators() -> Iterator[tuple[Op, tuple[str, ...], Any]]:
    """(operator, element types of its operands, sample) of every sample of an operator with an expression."""
    for _, cls in sorted(REGISTRY.items()):
        if not issubclass(cls, Elementwise):
            continue
        for sample in cls.samples:
            yield cls(**sample.fields), sample.dtypes or ("Float64",) * len(sample.shapes), sample


def sample_cases(floats: Sequence[str]) -> Iterator[Case]:
    """Every sample of every elementwise operator, Float64 replaced by other element types. A sample that only differs
    in shapes from one before it has one of them, in turn."""
    seen: set[Any] = set()
    for number, (op, dtypes, sample) in enumerate(elementwise_operators()):
        replaced = floats if "Float64" in dtypes else floats[:1]
        if (op, dtypes) in seen:
            replaced = [replaced[number % len(replaced)]]
        seen.add((op, dtypes))
        for name in replaced:
            names = [name if dtype == "Float64" else dtype for dtype in dtypes]
            types = tuple(TensorType(dtype_of(n), shape) for n, shape in zip(names, sample.shapes, strict=True))
            random = np.random.default_rng(0)
            yield Case(op, types, tuple(_between(random, t, sample.low, sample.high) for t in types))


def edge_cases() -> Iterator[Case]:
    """Infinities, NaN, zeros of both signs, extreme integers, in all combinations, for every elementwise operator."""
    seen: set[Any] = set()
    for op, dtypes, _ in elementwise_operators():
        for name in ("Float64", "Float32", "Int8", "Int64", "UInt8"):
            scalars = tuple(tensor(name if dtype == "Float64" else dtype) for dtype in dtypes)
            if (op, scalars) in seen or not _takes(op, scalars):
                continue
            seen.add((op, scalars))
            lists = [_edges(t, len(scalars)) for t in scalars]
            if op.name == "Pow" and scalars[1].dtype.is_integer:
                lists[1] = [v for v in lists[1] if v >= 0]  # NumPy refuses others
            columns = zip(*itertools.product(*lists), strict=True)
            values = tuple(np.array(c).astype(t.dtype.numpy) for c, t in zip(columns, scalars, strict=True))
            yield Case(op, tuple(t.with_shape(v.shape) for t, v in zip(scalars, values, strict=True)), values)


def _takes(op: Op, types: Sequence[TensorType]) -> bool:
    if op.name == "PReLU":  # their operands differ in shape
        return False
    real = type(op).__module__.endswith("activation") and op.name not in ("ReLU", "ReluGrad")
    if real and any(t.dtype.is_integer for t in types):
        return False
    try:
        op.infer(*types)
        with np.errstate(all="ignore"):
            op.kernel(NumPy())(*[np.zeros(t.shape, t.dtype.numpy) for t in types])  # type: ignore[arg-type]
    except Exception:  # NumPy has no such function of these element types
        return False
    return True


def _edges(type: TensorType, count: int) -> list[Any]:
    if type.dtype.kind == "b":
        return [False, True]
    if type.dtype.is_float:
        return list(FLOATS if count < 3 else FEW_FLOATS)
    return [v for v in INTEGERS if v >= 0] if type.dtype.kind == "u" else list(INTEGERS)


def chain(types: Sequence[str], body: Sequence[str], returns: Sequence[int], alias: int = -1, shift: int = 0) -> Case:
    return Case(FusedElementwise(tuple(body), tuple(returns)), tuple(map(tensor, types)), (), alias, shift)


def chain_cases(scale: int = 1) -> Iterator[Case]:
    """Chains of every kind of loop. scale: factor of the sizes of dimension 0 or 1."""
    n = 8 * scale
    gelu = ("Add(x0, x1)", "GeLU(t0)")
    for dtype in ("Float32", "BFloat16", "Float16", "Float64"):
        yield chain((f"{dtype} {n} 64", f"{dtype} 64"), gelu, (1,))
        yield chain((f"{dtype} {n} 64", f"{dtype} 64"), gelu, (0, 1), alias=0)
        for keep, axis in itertools.product(("false", "true"), ("(0)", "(1)", "()")):
            reduction = f"ReduceSum(t0, keep_dims={keep}, axis={axis})"
            yield chain((f"{dtype} {n} 64", f"{dtype} {n} 64"), ("Mul(x0, x1)", reduction), (0, 1), alias=0)
    mixed = (
        "Cast(x0, dst_type=Float32)", "Mul(t0, x1)", "Add(t1, x2)", "Cast(t2, dst_type=BFloat16)",
        "Mul(t3, x3)", "Cast(t4, dst_type=Float32)",
    )  # fmt: skip
    yield chain((f"BFloat16 {n} 36", "Float32", f"Float32 {n} 1", "BFloat16 36"), mixed, (3, 5))
    yield chain(("Float32 400 1000", "Float32 1000"), ("Mul(x0, x1)", "Neg(t0)"), (1,), alias=0)  # packs in flight
    yield chain(("BFloat16 400 1001", "Float32"), ("Cast(x0, dst_type=Float32)", "Mul(t0, x1)"), (1,))
    yield chain(("Float32 7 13",), ("Tanh(x0)", "Square(t0)"), (1, 0))
    yield chain(("Float32 7 13",), ("Tanh(x0)", "Square(t0)"), (1,), shift=4)
    yield chain(("Float32 1 1", "Float32"), ("Sub(x0, x1)",), (0,))
    yield chain(("Float32 4 1 6", "Float32 5 1", "Float32"), ("Mul(x0, x1)", "Add(t0, x2)"), (1,))
    yield chain(("Float32 4 1 8", "Float32 5 1", "Float32 3 1 1 1"), ("Lerp(x0, x1, x2)", "Neg(t0)"), (1,))
    yield chain(("Bool 9 16", "Float32 9 16", "Float32"), ("Select(x0, x1, x2)", "Greater(t0, x1)"), (0, 1))
    yield chain(("Int32 12 16", "Int32 16"), ("Add(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(0))"), (1,))
    yield chain(("Int8 5 16", "Int8 16"), ("Add(x0, x1)", "ReduceMax(t0, keep_dims=false, axis=(1))"), (0, 1))
    yield chain(("Bool 5 16", "Bool 16"), ("LogicalAnd(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(1))"), (1,))
    yield chain((f"Float32 {n} 6 6",) * 3, ("AddN(x0, x1, x2)", "Neg(t0)"), (0, 1), alias=2)
    # Two reductions of one chain; means; rows and columns that pack and that do not; more than one part.
    for shape in ("96 40", "600 24", "33 7", "5 1024", "3 5000", "2 9999", "1 6000", "4000 1", "1 1"):
        rows = [int(v) for v in shape.split()]
        for axis in ("(0)", "(1)", "()"):
            body = (
                "Mul(x0, x1)", f"ReduceMean(t0, keep_dims=false, axis={axis})",
                f"ReduceMax(t0, keep_dims=true, axis={axis})",
            )  # fmt: skip
            yield chain((f"Float32 {shape}", f"Float32 {rows[1]}"), body, (1, 2, 0) if rows[0] < 50 else (1, 2))
    three = [f"ReduceSum(t0, keep_dims=false, axis={axis})" for axis in ("(0)", "(1)", "()")]
    yield chain(("Float32 96 40", "Float32 40"), ("Mul(x0, x1)", *three, "Neg(t0)"), (4, 3, 1, 2), alias=0)
    yield chain(("Float32 64 64", "Float32 64"), ("Mul(x0, x1)", *three[:2]), (1, 2))
    for axis in ("(1)", "(0, 2)", "(0, 1)", "(1, 2)", "(-1)", "(0)", "()"):
        body = ("Add(x0, x1)", f"ReduceSum(t0, keep_dims=false, axis={axis})")
        yield chain((f"Float32 {4 * scale} 6 16", "Float32 6 1"), body, (1,))
        yield chain((f"BFloat16 {4 * scale} 70 24", "BFloat16 1 24"), body, (1, 0))
    yield chain(("Float32 3 300 20 1", "Float32"), ("Mul(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(1, 3))"), (1,))
    deep = ("Add(x0, x1)", "ReduceSum(t0, keep_dims=false, axis=(1, 3))")
    yield chain(("Float32 3 5 4 16", "Float32 4 1"), deep, (1,))
    yield chain(("Float32 2 3 4 40 16", "Float32 3 1 40 1"), ("Mul(x0, x1)", "Exp(t0)"), (1,))
    # Lines of several shapes, with operands that are broadcast in one of them.
    views = (
        "Cast(x0, dst_type=Float32)", 'BiasAdd(t0, x1, data_format="NCHW")', f"Reshape(t1, shape=({n}, 3, 24))",
        "Add(t2, x2)", f"Reshape(t3, shape=({3 * n}, 24))", "ReduceSum(t4, keep_dims=false, axis=(0))",
    )  # fmt: skip
    yield chain((f"BFloat16 {3 * n} 24", "Float32 24", "Float32 3 1"), views, (5, 3, 4))
    images = ('BiasAdd(x0, x1, data_format="NCHW")', "ReLU(t0)", "Flatten(t1)", "Mul(t2, x2)")
    yield chain((f"Float32 {n} 6 2 4", "Float32 6", "Float32 48"), images, (3,))
    # Lines that are made of places: a mask of a slice, of which what lies behind is drawn elsewhere, and classes.
    for shape, begin in (((40, 12), (0, 0)), ((40, 24), (0, 12)), ((80, 12), (40, 0))):
        drawn = f"sizes=(40, 12), shape={shape}, begin={begin}, local=(40, 12)"
        mask = f"DropoutMask(keep_prob=0.75, Seed0=1, Seed1=5, {drawn})"
        dropped = ("Neg(x0)", mask, "DropoutGrad(t0, t1, keep_prob=0.75)", "ReduceSum(t2, keep_dims=false, axis=(0))")
        yield chain(("Float32 40 12",), dropped, (2, 1, 3))
    yield chain(("Float32 7 13",), ("Neg(x0)", mask.replace("40, 12", "7, 13").replace("80, 12", "7, 13").replace(
        "begin=(40, 0)", "begin=(0, 0)"), "DropoutGrad(t0, t1, keep_prob=0.75)"), (2,))  # fmt: skip
    turned = mask.replace(drawn, "sizes=(10, 12, 4), steps=(48, 1, 12), shape=(40, 12), begin=(0, 0), local=(40, 12)")
    yield chain(("Float32 10 12 4",), ("Neg(x0)", turned, "DropoutGrad(t0, t1, keep_prob=0.75)"), (2, 1))
    # Sums over places between images and channels, as groups of channels have them, beside those over images, too.
    groups = (
        "Mul(x0, x1)", "ReduceMean(t0, keep_dims=true, axis=(1, 2))", "ReduceSum(t0, keep_dims=false, axis=(0, 1, 2))",
        "ReduceMax(t0, keep_dims=true, axis=(2, 1))",
    )  # fmt: skip
    for dims in ("3 9 14 5 4", "2 40 30 3 1", "70 2 3 1 8"):
        yield chain((f"Float32 {dims}", f"Float32 {dims.split(' ', 3)[3]}"), groups, (1, 2, 0, 3))
        yield chain((f"BFloat16 {dims}", f"BFloat16 {dims.split(' ', 3)[3]}"), groups[:2], (1,))
    classes = "axis=1, depth=24, offset=3"
    hit = (f"OneHot(x0, x1, x2, {classes})", "Mul(t0, x3)", "BroadcastTo(x4, shape=(9, 24, 5))", "AddN(t1, t2)")
    yield chain(("Int32 9 5", "Float32", "Float32", "Float32 9 24 5", "Float32 9 1 5"), hit, (3, 0))
    yield chain(("Float32 12", "Float32 3 4"), ("Reshape(x0, shape=(3, 4))", "Mul(t0, x1)", "Neg(t0)"), (1, 2))
    yield chain(("Float32 12",), ("Reshape(x0, shape=(3, 4))",), (0,))


def decided_case(dtype: str) -> tuple[Case, list[Any]]:
    """(a product of halves that is compared with what another kernel has stored of it, what comes out)."""
    x, factor = (np.random.default_rng(i).uniform(1, 2, 64).astype(dtype_of(dtype).numpy) for i in range(2))
    x[3:] = float(ml_dtypes.finfo(x.dtype).max)  # these products are infinite in halves, not in Float32
    with np.errstate(over="ignore"):
        stored = x * factor
    found = chain((f"{dtype} 64",) * 3, ("Mul(x0, x1)", "Equal(t0, x2)", "IsFinite(t0)", "Less(t0, x2)"), (1, 2, 3))
    wanted = [stored == stored, np.isfinite(stored.astype(np.float32)), np.zeros(64, np.bool_)]
    return replace(found, values=(x, factor, stored)), wanted


def row_cases(scale: int = 1) -> Iterator[Case]:
    """Chains in which lines read what was reduced of a row, for rows of all lengths."""
    n = 5 * scale
    norm = (
        "Add(x0, x1)", "ReduceMean(t0, keep_dims=true, axis=(1))", "Sub(t0, t1)", "Square(t2)",
        "ReduceMean(t3, keep_dims=true, axis=(1))", "Add(t4, x2)", "Rsqrt(t5)", "Mul(t2, t6)", "Mul(t7, x3)",
    )  # fmt: skip
    soft = ("Mul(x0, x1)", "Softmax(t0, axis=-1)", "Mul(t1, x2)")
    for length in (2, 3, 8, 31, 64, 200, 1001, 1024, 4096, 50000):
        rows = n if length < 5000 else 3
        yield chain((f"Float32 {rows} {length}", f"Float32 {length}", "Float32", f"Float32 {rows} 1"), norm, (8, 1, 4))
        yield chain((f"Float32 {rows} {length}", "Float32", f"Float32 {length}"), soft, (2, 1), alias=0)
    for dtype in ("BFloat16", "Float64"):
        yield chain((f"{dtype} {n} 256", f"{dtype} 256", f"{dtype}", f"{dtype} {n} 1"), norm, (8, 0, 1))
        yield chain((f"{dtype} {n} 8 24", f"{dtype}", f"{dtype} 8 1"), soft, (2,))
    entropy = (
        "Cast(x0, dst_type=Float32)", "Reshape(t0, shape=(12, 40))", "LogSoftmax(t1, axis=1)", "Select(x1, t2, x2)",
        "ReduceSum(t3, keep_dims=false, axis=(1))", "Neg(t4)", "Mul(t5, x3)",
    )  # fmt: skip
    yield chain(("BFloat16 3 4 40", "Bool 12 40", "Float32", "Float32 12"), entropy, (6, 2))
    gradient = (
        "LogSoftmax(x0, axis=1)", "Select(x1, x2, x3)", "LogSoftmaxGrad(t0, t1, axis=1)", "Cast(t2, dst_type=BFloat16)",
        "Reshape(t3, shape=(3, 4, 40))", "ReduceSum(t1, keep_dims=false, axis=(0))",
        "ReduceSum(t1, keep_dims=false, axis=())",
    )  # fmt: skip
    yield chain(("Float32 12 40", "Bool 12 40", "Float32 12 1", "Float32"), gradient, (4, 5, 6))
    # A value for every row that is broadcast among rows, and an operand that is so along a part of a row.
    yield chain(
        ("Float32 4 6 3 8", "Float32 6", "Float32 3 1"),
        ("Exp(x0)", "ReduceSum(t0, keep_dims=false, axis=(2, 3))", "Mul(t1, x1)", "Reshape(t2, shape=(4, 6, 1, 1))",
         "Div(t0, t3)", "Add(t4, x2)", "ReduceMax(t5, keep_dims=false, axis=(-1, -2))"),
        (5, 2, 6),
    )  # fmt: skip
    masked = ("DropoutMask(keep_prob=0.5, Seed0=1, Seed1=5, sizes=(9, 16), shape=(9, 16), begin=(0, 0), local=(9, 16))",
              "Softmax(x0, axis=1)", "DropoutGrad(t1, t0, keep_prob=0.5)")  # fmt: skip
    yield chain(("Float32 9 16",), masked, (2,))
    by_row = masked[0].replace("9, 16", "9")
    of_rows = ("ReduceMean(x0, keep_dims=false, axis=(1))", by_row.replace("begin=(0, 0)", "begin=(0)"),
               "DropoutGrad(t0, t1, keep_prob=0.5)", "Reshape(t2, shape=(9, 1))", "Mul(x0, t3)")  # fmt: skip
    yield chain(("Float32 9 16",), of_rows, (2, 4))
    yield chain(("Int32 9 16",), ("ReduceMax(x0, keep_dims=true, axis=(1))", "Sub(x0, t0)"), (1, 0))
    backward = ("SoftmaxBackward(x0, x1, dim=-1)", "Mul(t0, x2)")
    yield chain(("Float32 7 2 96", "Float32 7 2 96", "Float32"), backward, (1,), alias=1)


def update_types(op: Update, shape: str, dtype: str, gradient: str) -> list[str]:
    """Types of an update's operands for a parameter of this shape."""
    return [
        dtype if i in op.scalars else f"{gradient if name == 'gradient' else dtype} {shape}"
        for i, name in enumerate(op.operands)
    ]


def update_cases(scale: int = 1) -> Iterator[Case]:
    """Every optimizer on several tensors of different sizes, gradients of other element types among them."""
    updates: list[Update] = []
    for _, cls in sorted(REGISTRY.items()):
        if issubclass(cls, Update) and cls is not AssignOnHost:  # a copy, which no kernel makes
            updates += [cls(**sample.fields) for sample in cls.samples if len(sample.shapes[0]) == 1]
    for op in updates:
        gradients = ("Float32", "BFloat16", "Float16") if "gradient" in op.operands else ("Float32",)
        types: list[str] = []
        sizes = ("5", "1024", f"{3 * scale} 700", "", f"{9001 * scale}", "2 2")
        for number, sizes_of in enumerate(sizes):
            types += update_types(op, sizes_of, "Float32", gradients[number % len(gradients)])
        yield _positive(GroupedUpdate.of(op, len(sizes)), types)
        yield _positive(op, update_types(op, f"{13 * scale} 8", "Float64", "Float64"))
        yield _positive(op, update_types(op, "37", "Float16", "Float16"), shift=2)
        if len(op.operands) == 2 and op.cuda_update:
            yield Case(op, (tensor("Int32 9"), tensor("Int32 9")))
    body = ("Cast(x2, dst_type=Float32)", "Mul(t0, x3)", "Select(x4, t1, x1)", "Greater(t2, x0)", "Select(t3, t2, x0)")
    written = FusedUpdate(body, (4, 2), (3, 4))
    for gradient in ("BFloat16", "Float16", "Float32"):
        types = []
        for n in ("7", "3 1001", "64"):
            types += [f"Float32 {n}", f"Float32 {n}", f"{gradient} {n}", "Float32", "Bool"]
        yield _positive(GroupedUpdate.of(written, 3), types)


def _positive(op: Op, types: Sequence[str], shift: int = 0) -> Case:
    random = np.random.default_rng(1)
    found = tuple(map(tensor, types))
    return Case(op, found, tuple(np.asarray(random.uniform(0.1, 0.9, t.shape)).astype(t.dtype.numpy) for t in found),
                shift=shift)  # fmt: skip
