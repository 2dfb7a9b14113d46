"""Operators that are not elementwise, with inputs on which their CUDA kernels are compared with the NumPy ones."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.graphs import REGISTRY, Op, TensorType, TupleType, dtype_of, element_types

MODULES = (
    "nn.softmax", "nn.norm", "nn.experts", "loss.loss", "math.mint", "math.reduce", "math.scans", "tensor.reshape",
    "tensor.moving", "tensor.slicing", "tensor.embedding", "tensor.creation", "tensor.selection", "tensor.scatter",
    "random.dropout", "convolution.resizing",
)
"""Modules of which operators have kernels."""
ARRAY_BY_ARRAY = {("ScatterElements", 2), ("TopkExt", 1)}
"""Samples that go through CuPy all the same: an index that is smaller than its target, the least along dimension 0."""
TOO_SMALL = ("ExpertProduct", "ExpertOuter")
"""Operators with samples for which a GPU has no kernel; larger cases are below."""
TOLERANCE = {"Float64": 1e-12, "Float32": 3e-6, "Float16": 2e-3, "BFloat16": 1.6e-2}
FLOATS = ("Float32", "Float16", "BFloat16", "Float64")
HALVES = FLOATS[1:3]


class NumPy:
    """The backend of the expected values, in the step that the devices are in."""

    xp = np
    comm = None
    step = 3


@dataclass(frozen=True)
class Case:
    """An operator on operands of these types. high: of integers, which are drawn from [low, high). floats: replaces
    Float64. alias: the operand that takes the result, -1 for none. shift: elements between an aligned address and
    where an array begins.
    """

    name: str
    op: Op
    types: tuple[TensorType, ...]
    low: float = -2.0
    high: float = 2.0
    alias: int = -1
    shift: int = 0

    def inputs(self) -> list[Any]:
        """Random arrays, always the same."""
        random = np.random.default_rng(zlib.crc32(self.name.encode()))
        found: list[Any] = []
        for t in self.types:
            if t.dtype.kind == "b":
                values: Any = random.random(t.shape) < 0.5
            elif t.dtype.is_integer:
                values = random.integers(int(self.low), int(np.ceil(self.high)), t.shape)
            else:
                values = random.uniform(self.low, self.high, t.shape)
            found.append(np.asarray(values).astype(t.dtype.numpy))
        return found

    def results(self) -> tuple[TensorType, ...]:
        return element_types(self.op.infer(*self.types))

    def expected(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """NumPy's results in Float64 for the same, already rounded, values."""
        wide = [x.astype(np.float64) if dtype_of(x.dtype).is_float else x for x in inputs]
        found = self.op.run(NumPy(), *wide)  # type: ignore[arg-type]  # no communicator is needed
        return found if isinstance(found, tuple) else (found,)

    def check(self, found: Sequence[Any], expected: Sequence[Any]) -> None:
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            tolerance = TOLERANCE.get(dtype_of(one.dtype).name)
            if tolerance is None:
                np.testing.assert_array_equal(one, other.astype(one.dtype), err_msg=f"{self.name}: result {i}")
                continue
            scale = max(1.0, float(np.abs(other).max(initial=0, where=np.isfinite(other))))
            np.testing.assert_allclose(
                one.astype(np.float64), other.astype(np.float64), rtol=tolerance, atol=tolerance * scale,
                err_msg=f"{self.name}: result {i}",
            )  # fmt: skip

    def outs(self, made: Sequence[Any]) -> Any:
        """`made` as `launch` takes it."""
        return tuple(made) if isinstance(self.op.infer(*self.types), TupleType) else made[0]


def sample_cases() -> Iterator[Case]:
    """Every sample of every operator in Float32, the first one in Float64 and, by turns, in one of the halves too."""
    for place, (name, cls) in enumerate(sorted(REGISTRY.items())):
        module = cls.launch.__module__.removeprefix("mspc.ops.")
        if module not in MODULES or name in TOO_SMALL:
            continue
        for index, spec in enumerate(cls.samples):
            if (name, index) in ARRAY_BY_ARRAY:
                continue
            for floats in ("Float32", *(() if index else ("Float64", HALVES[place % 2]))):
                names = spec.dtypes or ("Float64",) * len(spec.shapes)
                if index == 0 and floats != "Float32" and spec.shapes and "Float64" not in names:
                    continue
                types = tuple(
                    TensorType(dtype_of(floats if n == "Float64" else n), shape)
                    for n, shape in zip(names, spec.shapes, strict=True)
                )
                yield Case(f"{name} sample {index} {floats}", cls(**spec.fields), types, spec.low, spec.high)


def _case(name: str, dtypes: str | Sequence[str], *shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0,
          alias: int = -1, shift: int = 0, **fields: Any) -> Case:  # fmt: skip
    names = [dtypes] * len(shapes) if isinstance(dtypes, str) else dtypes
    types = tuple(TensorType(dtype_of(n), shape) for n, shape in zip(names, shapes, strict=True))
    op = REGISTRY[name](**fields)
    how = f"{f' over {alias}' if alias >= 0 else ''}{' shifted' if shift else ''}"
    label = f"{op} {' '.join(str(t) for t in types)}{how}"
    return Case(label, op, types, low, high, alias, shift)


def odd_cases() -> Iterator[Case]:
    """Sizes with remainders, rows of all lengths, reductions in parts, operands as results, shifted addresses."""
    f32, f16, b16, f64 = FLOATS[0], FLOATS[1], FLOATS[2], FLOATS[3]
    for columns in (1, 7, 33, 1000, 1025, 5000, 33001):
        rows = 3 if columns > 5000 else 5
        yield _case("Softmax", f32, (rows, columns))
        yield _case("SoftmaxBackward", f32, (rows, columns), (rows, columns), alias=0)
        yield _case("LayerNorm", f32, (rows, columns), (columns,), (columns,), epsilon=1e-5)
        statistics = ((rows, 1), (rows, 1), (columns,))
        yield _case("LayerNormGrad", f32, (rows, columns), (rows, columns), *statistics, low=0.1, alias=1)
    for dtype in (f16, b16, f64):
        for columns in (7, 1000, 9000):
            yield _case("Softmax", dtype, (4, columns), low=-20, high=20, alias=0)
            yield _case("LogSoftmaxGrad", dtype, (4, columns), (4, columns), low=-3, high=0)
            statistics = ((4, 1), (4, 1), (columns,))
            yield _case("LayerNormGrad", dtype, (4, columns), (4, columns), *statistics, low=0.1)
            yield _case("RmsNorm", dtype, (4, columns), (columns,))
    yield _case("Softmax", f32, (2, 40, 6), axis=1)
    yield _case("Softmax", f32, (130, 1024))
    yield _case("Softmax", b16, (300, 64), shift=1)
    yield _case("LogSoftmax", f16, (3, 100, 7), axis=1)
    yield _case("L2Normalize", f32, (50, 33), axis=0)
    yield _case("LayerNorm", f32, (6, 5, 12), (5, 12), (5, 12), shift=1)
    for dtype in (f32, b16):
        yield _case("SoftmaxCrossEntropyWithLogits", dtype, (5, 1003), (5, 1003), low=0, high=0.01)
        for is_grad in (False, True):
            name, types = "SparseSoftmaxCrossEntropyWithLogits", (dtype, "Int32")
            yield _case(name, types, (40, 1003), (40,), low=-3, high=900, is_grad=is_grad)
            yield _case(name, types, (3, 50001), (3,), low=0, high=2, is_grad=is_grad)
    for dtype in (f32, b16, "Int64"):
        for shape, axis in (
            ((100000,), ()), ((3, 50001), (1,)), ((3, 50000), (1,)), ((5000, 7), (0,)), ((5000, 64), (0,)),
            ((300, 513), (0,)), ((2, 300, 40), (0, 2)), ((3, 500, 24), (1,)), ((40, 3, 50, 4), (0, 2)),
            ((9, 3000), (0,)), ((1, 1), (0,)), ((4, 1, 3), (1,)), ((700, 3), (1,)), ((3, 40000, 2), (0, 1, 2)),
        ):  # fmt: skip
            if dtype != b16 or axis != ():
                yield _case("ReduceSum", dtype, shape, axis=axis, low=-5, high=6)
    yield _case("ReduceSum", f32, (5001, 66), axis=(0,), shift=1)
    yield _case("ReduceMean", b16, (600, 1024), axis=(0,))
    yield _case("ReduceMax", f32, (5000, 6), axis=(0,))
    yield _case("ReduceMin", "Int8", (700, 40), axis=(0,), low=-128, high=128)
    yield _case("ReduceMax", "UInt32", (3, 50000), axis=(1,), low=0, high=9)
    yield _case("ReduceAll", "Bool", (40, 3000), axis=(0,))
    yield _case("ReduceAny", "Bool", (3, 30000), axis=(1,))
    yield _case("ReduceSum", "Bool", (30, 3), axis=(1,))
    for dtype in (f32, b16):
        gamma = {"epsilon": 1e-5}
        yield _case("LayerNormGammaGrad", dtype, (900, 136), (900, 136), (900, 1), (900, 1), low=0.1, **gamma)
        yield _case("LayerNormGammaGrad", dtype, (1, 136), (1, 136), (1, 1), (1, 1), low=0.1, **gamma)
        yield _case("LayerNormGammaGrad", dtype, (30, 40, 24), (30, 40, 24), (30, 1, 1), (30, 1, 1), low=0.1,
                    begin_params_axis=2, **gamma)  # fmt: skip
    for dtype in (f32, f16, f64, "Int8"):
        yield _case("Transpose", dtype, (70, 45), perm=(1, 0))
        yield _case("Transpose", dtype, (3, 33, 5, 66), perm=(2, 3, 0, 1))
        yield _case("Transpose", dtype, (2, 65, 34), perm=(0, 2, 1), shift=1)
        yield _case("Transpose", dtype, (3, 5, 4, 16), perm=(0, 2, 1, 3))
        yield _case("Transpose", dtype, (5, 70, 3, 3), perm=(0, 2, 3, 1))
        yield _case("Transpose", dtype, (2, 3, 40, 130), perm=(0, 2, 3, 1))
        yield _case("Transpose", dtype, (2, 1500, 3), perm=(0, 2, 1), shift=1)
        yield _case("Transpose", dtype, (3, 5, 4, 7), perm=(3, 1, 0, 2))
        yield _case("Concat", dtype, (5, 3, 8), (5, 1, 8), (5, 6, 8), axis=1)
        yield _case("Split", dtype, (6, 48), axis=1, output_num=3)
        yield _case("BroadcastTo", dtype, (3, 1, 7), shape=(4, 3, 5, 7))
        yield _case("BroadcastTo", dtype, (6, 1), shape=(3, 6, 48))
        yield _case("StridedSlice", dtype, (40, 300), begin=(3, 250), end=(38, 10), strides=(2, -3))
        yield _case("StridedSliceGrad", dtype, (18, 80), begin=(3, 250), end=(38, 10), strides=(2, -3), shape=(40, 300))
        yield _case("Pad", dtype, (40, 130), paddings=((2, 0), (1, 5)))
    yield _case("Concat", f32, *[(4, n) for n in range(1, 12)], axis=1)
    yield _case("Tile", f32, (3, 5), multiples=(4, 2, 3))
    yield _case("ReverseV2", f32, (5, 33, 8), axis=(0, 2))
    yield _case("Tril", f16, (3, 70, 61), diagonal=2)
    yield _case("Fill", (), shape=(71, 61), type=dtype_of(b16), value=-0.7)
    yield _case("Fill", (), shape=(7,), type=dtype_of("Int8"), value=-128)
    yield _case("Fill", (), shape=(7,), value=float("-inf"))
    for dtype in (f32, b16):
        ids = (dtype, "Int32")
        axis = ("Gather(batch_dims=0, axis=1, offset=0, total=0)",) * 2
        yield _case("GroupedLookups", ids * 2, (3, 20, 5), (40,), (3, 20, 5), (40,), low=0, high=20, lookups=axis)
        yield _case("Gather", ids, (100, 24), (7, 30), low=-100, high=100)
        yield _case("Gather", (dtype, "Int64"), (50, 13), (70,), low=0, high=100, offset=50, total=100, shift=1)
        yield _case("GatherGrad", ids, (3000, 12), (3000,), low=0, high=3, size=5)
        yield _case("GatherGrad", ids, (200, 260), (200,), low=-700, high=700, size=700)
        yield _case("GatherGrad", ids, (200, 7), (200,), low=0, high=900, size=300, offset=450, total=900)
        yield _case("UnsortedSegmentSum", ids, (2, 100, 6), (2, 100), low=-1, high=90, num_segments=80)
        yield _case("GatherGrad", ids, (5000, 24), (5000,), low=0, high=3, size=3)
        yield _case("GatherGrad", ids, (2, 3, 2300, 4), (2, 2300), low=0, high=70, size=90, axis=2, batch_dims=1)
        yield _case("GatherGrad", ids, (2, 900, 5), (900,), low=-2, high=2, size=2, axis=1)
        sums = [f"GatherGrad(size={n}, axis=0, offset={m}, total={all})" for n, m, all in ((90, 0, 0), (7, 5, 40))]
        many = ("GatherGrad(size=3, axis=0, offset=0, total=0)", "UnsortedSegmentSum(num_segments=80, offset=-2)")
        yield _case("GroupedRowSums", ids * 2, *((2300, 12), (2300,)) * 2, low=0, high=40, sums=tuple(sums))
        yield _case("GroupedRowSums", ids * 4, *((70, 12), (70,)) * 4, low=0, high=3, sums=(sums[0], sums[0], *many))
        yield _case("GroupedRowSums", ids * 3, *((2500, 4), (2500,)) * 3, low=0, high=9, sums=(sums[0],) * 3)
        ends = (dtype, "Int32", dtype, "Int64"), (40, 24), (300,), (30, 24), (300,)
        yield _case("EdgeProducts", *ends, low=0, high=30, shape=(300, 3), dst_type=dtype_of(f32))
        gathers = tuple(f"Gather(batch_dims=0, axis=0, offset={m}, total={all})" for m, all in ((0, 0), (5, 40)))
        look = ("GroupedLookups", ids * 2, (40, 24), (7, 30), (9, 24), (7, 30))
        yield _case(*look, low=-9, high=9, lookups=gathers)
        yield _case(*look, low=-9, high=9, lookups=gathers, dst_type=dtype_of(f16 if dtype == f32 else f32), shift=1)
        yield _case(*look, low=0, high=9, lookups=("EmbeddingLookup(offset=3)", gathers[0]))
        wide = (dtype, "Int64", dtype)
        for kind in ("TensorScatterUpdate", "TensorScatterAdd"):
            yield _case(kind, wide, (40, 24), (70, 1), (70, 24), low=-40, high=40)
            yield _case(kind, wide, (3, 7, 5), (2000, 2), (2000, 5), low=0, high=3, shift=1)
            yield _case(kind, wide, (3, 4, 24), (9, 2), (9, 24), low=0, high=8, begins=(0, 2), sizes=(9, 8))
        update = ("TensorScatterUpdate", wide)
        yield _case(*update, (3, 4, 24), (1, 1), (1, 3, 24), low=-4, high=4, dims=(1,))
        yield _case(*update, (3, 4, 24), (1,), (3, 4), low=0, high=40, dims=(2,), begins=(8,), sizes=(40,), shift=1)
        yield _case(*update, (5, 6, 7), (40, 2), (40, 6), low=0, high=3, dims=(0, 2))
        yield _case("GatherNd", wide[:2], (3, 4, 24), (9, 2), low=0, high=8, begins=(0, 2), sizes=(9, 8))
        for adds in (False, True):
            given = ((3, 20, 7), (3, 50, 7), (3, 50, 7))
            yield _case("ScatterElements", wide, *given, low=-20, high=20, axis=1, adds=adds)
        long = ((2, 9, 3), (2, 4100, 3), (2, 4100, 3))
        yield _case("ScatterElements", wide, *long, low=-9, high=9, axis=1, combine="maximum")
        yield _case("ScatterElements", wide, *long, low=-9, high=9, axis=1, adds=True)
        for shape, axis in (((3, 700), 1), ((2100, 8), 0), ((1, 20000), 1), ((5000, 5), 1), ((3, 33, 40), 1)):
            where = {"axis": axis, "low": 0, "high": 1}
            yield _case("CumSum", dtype, shape, **where)
            for name in ("CumSum", "CumulativeLogsumexp"):
                yield _case(name, dtype, shape, **where, reverse=True, exclusive=True)
            yield _case("CumProd", dtype, shape, axis=axis, low=0.99, high=1.009)
            for name, operands, reverse in (
                ("LinearRecurrence", 2, False), ("LinearRecurrenceGrad", 3, True), ("CumulativeLogsumexpGrad", 3, False)
            ):  # fmt: skip
                yield _case(name, dtype, *[shape] * operands, **where, reverse=reverse)
            yield _case("Cummax", dtype, shape, axis=axis)
    for dtype in ("Int8", "Int64", "Bool"):
        yield _case("Cummin", dtype, (3, 40, 9), axis=1, low=-100, high=100)
        if dtype != "Bool":
            yield _case("CumSum", dtype, (40, 30), axis=1, reverse=True, low=-3, high=3)
            yield _case("CumProd", dtype, (40, 30), axis=1, low=-3, high=3)
    for dtype in (f32, b16):
        yield _case("TopK", dtype, (70, 8), k=2, low=-3, high=3)
        yield _case("TopK", dtype, (3, 900), k=5)
        yield _case("RepeatInterleaveInt", dtype, (4, 6, 24), repeats=3, dim=1)
    yield _case("OrderRows", "Int64", (33000,), low=-50, high=800, size=700)
    for dtype in (f32, b16, f64, "Int8", "Int32", "Int64", "UInt64", "Bool"):
        descends, low = dtype in (f64, "Int64"), 0 if dtype == "UInt64" else -3
        yield _case("Sort", dtype, (700, 2), axis=0, descending=descends, low=low, high=3)
        yield _case("Sort", dtype, (2, 70), descending=not descends, low=low, high=3)
    yield _case("SortExt", b16, (2, 600), dim=1, descending=True)
    yield _case("TopkExt", f32, (9, 40), k=5, largest=False)
    yield _case("TopkExt", b16, (70, 8), k=2, low=-3, high=3)
    for ends, dtype in (("Int64", f32), ("Int32", b16)):
        grouped = (dtype, dtype, ends)
        for rows, first, extra in ((90, 0, {}), (40, 30, {"begin": 1, "count": 2})):
            held = extra.get("count", 5)
            more = {"first": first, **extra, "low": -1, "high": 100}
            yield _case("GroupedProduct", grouped, (rows, 24), (held, 24, 40), (5,), **more)
            yield _case("GroupedProduct", grouped, (rows, 24), (held, 40, 24), (5,), transpose_b=True, **more)
            yield _case("GroupedOuter", grouped, (rows, 24), (rows, 40), (5,), **more)
            yield _case("GroupedRows", grouped, (rows, 24), (held, 24), (5,), **more)
            yield _case("GroupedSums", grouped[1:], (rows, 23), (5,), **more)
        yield _case("ExpertProduct", grouped, (160, 24), (4, 24, 40), (2, 2, 2), low=0, high=40)
        yield _case("ExpertOuter", grouped, (160, 24), (160, 40), (2, 2, 2), low=0, high=40)
        for name, shapes in (("ExpertRows", ((160, 24), (4, 24))), ("ExpertSums", ((160, 300),))):
            yield _case(name, grouped[-1 - len(shapes) :], *shapes, (2, 2, 2), low=0, high=40)
    for kind in ("Int32", "Int64"):
        for parts, more in ((2, {}), (4, {"outer": 2}), (2, {"outer": 3, "own": (1, 2, 1, 1)})):
            yield _case("ExpertPlaces", (kind, "Int32"), (8,), (1500,), low=0, high=1500, parts=parts, **more)
        for drop_type in (0, 1):
            router = {"expert_num": 7, "drop_type": drop_type}
            yield _case("TopKRouter", kind, (3, 300, 2), low=-2, high=7, capacity=40, **router)
            yield _case("TopKRouter", kind, (2, 5, 3), low=0, high=3, capacity=2, **router)
    yield _case("TopK", "Int32", (9, 40), k=40, low=0, high=6)
    for kind in ("ResizeNearestNeighbor", "ResizeBilinear", "ResizeBicubic"):
        yield _case(kind, f32, (2, 3, 9, 14), size=(18, 28))
        yield _case(f"{kind}Grad", f32, (2, 3, 18, 28), size=(18, 28), input_size=(2, 3, 9, 14))
        yield _case(f"{kind}Grad", b16, (2, 3, 4, 5), size=(4, 5), input_size=(2, 3, 9, 14))
    last = {"data_format": "NHWC", "size": (18, 28)}
    yield _case("ResizeBilinear", b16, (2, 9, 14, 6), **last)
    yield _case("ResizeBilinearGrad", f32, (2, 18, 28, 6), **last, input_size=(2, 9, 14, 6))
    yield _case("ResizeNearestNeighbor", f32, (2, 9, 14, 5), **last)
    yield _case("AdaptiveAvgPool2D", f32, (3, 9, 14, 6), output_size=(1, 4), data_format="NHWC")
    yield _case("AdaptiveAvgPool2DGrad", f32, (3, 1, 1, 6), output_size=1, data_format="NHWC", input_size=(3, 9, 14, 6))
    yield _case("ResizeTrilinear", f32, (2, 3, 4, 5, 3), size=(6, 5, 9), data_format="NDHWC")
    yield _case("UnsortedSegmentSum", ("Int64", "Int64"), (100,), (100,), low=-5, high=50, num_segments=40)
    yield _case("OneHot", ("Int64", f16, f16), (13, 5), (), (), low=-1, high=9, depth=9, axis=1)
    for dtype in (f32, f16, b16):
        yield _case("Dropout", dtype, (13, 77), keep_prob=0.6, Seed0=5, Seed1=9)
        yield _case("Dropout", dtype, (8, 24), keep_prob=0.3, Seed1=2, shape=(30, 100), begin=(11, 76))
        yield _case("Dropout", dtype, (6, 24), keep_prob=0.3, shape=(2, 9, 24), begin=(0, 3, 0), local=(2, 3, 24))
        whole, local = (2, 9, 4, 2, 3), (2, 3, 4, 2, 3)
        yield _case("Dropout2D", dtype, (6, 4, 2, 3), shape=whole, begin=(0, 6, 0, 0, 0), local=local)
    yield _case("UniformReal", (), shape=(71, 60), seed=7)


def all_cases() -> list[Case]:
    found = {case.name: case for case in (*sample_cases(), *odd_cases())}
    return list(found.values())
