"""Matmuls on tensor cores through cuBLASLt, fused with following operators.

cuBLASLt uses column-major matrices. A row-major matrix is its own column-major transpose, so that x @ y is computed as
(y^T @ x^T)^T by swapping the operands, without moving data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from nvmath import CudaDataType
from nvmath.bindings import cublasLt as lt
from nvmath.bindings.cublas import ComputeType

from mspc.ir.late_dataclass import dataclass
from mspc.ops.cuda.moves import transpose_bytes
from mspc.ops.device import Array, Launch, all_of, nothing
from mspc.runtime.gpu.choices import Choices, Key
from mspc.runtime.gpu.row_runs import Run, lanes_of, matrices_without_runs, rows_outside, runs_of, sample_runs
from mspc.runtime.workspaces import PRODUCTS

_EIGHTS_ALIGNED = 16
"""Sizes of matmuls of Float8 are multiples of this number."""
CANDIDATES = 12
"""Number of algorithms that are timed for a new shape."""
_TYPES = {
    "float8_e4m3fn": CudaDataType.CUDA_R_8F_E4M3,
    "float8_e5m2": CudaDataType.CUDA_R_8F_E5M2,
    "float16": CudaDataType.CUDA_R_16F,
    "bfloat16": CudaDataType.CUDA_R_16BF,
    "float32": CudaDataType.CUDA_R_32F,
    "float64": CudaDataType.CUDA_R_64F,
}
_EPILOGUES = {
    ("", False): lt.Epilogue.DEFAULT,
    ("", True): lt.Epilogue.BIAS,
    ("gelu", False): lt.Epilogue.GELU,
    ("gelu", True): lt.Epilogue.GELU_BIAS,
    ("gelu before", False): lt.Epilogue.GELU_AUX,
    ("gelu before", True): lt.Epilogue.GELU_AUX_BIAS,
    ("gelu_gradient", False): lt.Epilogue.DGELU,
}
_BEGINS_WITH = {
    lt.MatmulDescAttribute.TRANSA: 0, lt.MatmulDescAttribute.TRANSB: 0,
    lt.MatmulDescAttribute.EPILOGUE: int(lt.Epilogue.DEFAULT),
}  # fmt: skip
"""Initial attributes of a matmul descriptor."""


@dataclass(frozen=True)
class _Matrix:
    """Column-major view of an operand: rows, columns, whether it is transposed, stride in elements between matrices of
    the batch (0 if broadcast), and between columns."""

    rows: int
    columns: int
    transposed: bool
    stride: int
    pitch: int


class Unsupported(Exception):
    """Raised if cuBLASLt has no suitable algorithm."""


class Products:
    """Factory of matmuls for one device. Algorithms are chosen by shape, so that all ranks can take the same ones."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self._handle: int = 0
        self._workspaces: list[Array] = []
        self.choices: Choices = device.choices
        self.candidates: dict[Key, Any] = {}
        self._layouts: dict[tuple[int, _Matrix, int], int] = {}

    def launch(self, x: Array, y: Array, out: Array, transpose_a: bool, transpose_b: bool, addend: Array | None = None,
               bias: Array | None = None, activation: str = "", before: Array | None = None) -> Launch:  # fmt: skip
        """Return the launch of a matmul, see `Device.matmul`. Raise Unsupported if cuBLASLt does not support the
        element type or the epilogue."""
        if out.dtype.name not in _TYPES or x.dtype != y.dtype or out.itemsize == 1:
            raise Unsupported(f"{x.dtype} @ {y.dtype}")
        if not out.size:
            return nothing
        x, y, out, addend, before = _folded(x, y, out, transpose_a, addend, before)
        if not _uneven(x, out) and not _uneven(y, out):
            return BoundProduct(self, x, y, out, transpose_a, transpose_b, addend, bias, activation, before)
        in_order = self._one_by_one(x, y, out, transpose_a, transpose_b, addend, bias, activation, before)
        adds_in_place = addend is not None and addend.data.ptr == out.data.ptr  # not timed: it overwrites its operand
        if out.ndim != 4 or bias is not None or activation or adds_in_place:
            return in_order
        if not all(a is None or a.flags.c_contiguous for a in (x, y, out, addend)):
            return in_order
        # A batch over the other leading dimension may have fewer and larger matmuls.
        turned = [None if a is None else _swap_batch_dims(a) for a in (x, y, out, addend)]
        left, right, result, plus = turned
        try:
            others = self._one_by_one(left, right, result, transpose_a, transpose_b, plus, None, "", None)
        except Unsupported:
            return in_order
        shapes = tuple(a.shape for a in (x, y, out)), x.dtype.name, transpose_a, transpose_b, addend is not None
        return self.choices.fastest(("pieces", self.choices.multiprocessors, *shapes), [others, in_order])

    def scaled(self, x: Array, y: Array, x_scale: Array, y_scale: Array, out: Array, transpose_a: bool,
               transpose_b: bool) -> Launch:  # fmt: skip
        """Return the launch of a matmul of Float8 operands, see `Device.scaled_matmul`. Tensor cores sum along the last
        dimension of both operands: others are transposed first. Raise Unsupported if cuBLASLt does not support the
        types, the scales or the sizes."""
        if x.ndim > 2 and y.ndim == 2 and not transpose_a and x.flags.c_contiguous:
            x, out = x.reshape(-1, x.shape[-1]), out.reshape(-1, out.shape[-1])
        even = not any(n % _EIGHTS_ALIGNED for n in (*x.shape, *y.shape))
        if x.ndim != 2 or y.ndim != 2 or x_scale.size * y_scale.size != 1 or not even or not x.size * y.size:
            raise Unsupported(f"scaled {x.shape} @ {y.shape}")
        if out.dtype.name not in ("float16", "bfloat16", "float32") or x.dtype.name == y.dtype.name == "float8_e5m2":
            raise Unsupported(f"scaled {x.dtype} @ {y.dtype} in {out.dtype}")
        room = self.device.scratch(x.size * transpose_a + y.size * (not transpose_b) or 1)
        turned: list[Launch] = []
        if transpose_a:
            target = self.device.view(room, 0, x.shape[::-1], x.dtype)
            turned.append(transpose_bytes(self.device, x, target))
            x = target
        if not transpose_b:
            target = self.device.view(room, x.size * transpose_a, y.shape[::-1], y.dtype)
            turned.append(transpose_bytes(self.device, y, target))
            y = target
        product = BoundProduct(self, x, y, out, False, True, None, None, "", None, scales=(x_scale, y_scale))
        return all_of([*turned, product])

    def _one_by_one(self, x: Array, y: Array, out: Array, transpose_a: bool, transpose_b: bool, addend: Array | None,
                    bias: Array | None, activation: str, before: Array | None) -> Launch:  # fmt: skip
        """Return one launch per index of the leading dimensions, for operands that are broadcast along only some of
        them."""
        launches: list[BoundProduct] = []
        for place in np.ndindex(*out.shape[:-3]):
            parts = [None if a is None else _at(a, place, out.ndim) for a in (x, y, out, addend, before)]
            left, right, result, plus, pre = parts
            if _uneven(left, result) or _uneven(right, result):
                raise Unsupported("operands that are repeated along the last leading dimension")
            product = BoundProduct(self, left, right, result, transpose_a, transpose_b, plus, bias, activation, pre)
            launches.append(product)
        return all_of(launches)

    def bound(self, x: Array, y: Array, out: Array, transpose_a: bool, transpose_b: bool) -> BoundProduct:
        """Return a matmul of two matrices without choosing an algorithm. Raise Unsupported for element types unknown to
        cuBLASLt."""
        if out.dtype.name not in _TYPES or not x.dtype == y.dtype == out.dtype:
            raise Unsupported(f"{x.dtype} @ {y.dtype}")
        return BoundProduct(self, x, y, out, transpose_a, transpose_b, None, None, "", None, chosen=False)

    @property
    def handle(self) -> int:
        if not self._handle:
            self._handle = lt.create()
        return self._handle

    @property
    def deterministic(self) -> bool:
        """Whether nothing is chosen by timing."""
        return self.device.deterministic

    def workspace_of(self, lane: int) -> Array:
        """Return the workspace of a lane: matmuls of one lane run one after the other, different lanes run in
        parallel."""
        while len(self._workspaces) <= lane:
            self._workspaces.append(self.device.empty((PRODUCTS,), "uint8"))
            self.device.workspaces["matrix products"] = PRODUCTS * len(self._workspaces)
        return self._workspaces[lane]

    def layout(self, kind: int, matrix: _Matrix, batch: int) -> int:
        """Return the cached cuBLASLt layout of an operand."""
        key = kind, matrix, batch
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = _layout(kind, matrix, batch)
        return found

    def algorithm(self, key: Key) -> int:
        """Return the address of the algorithm chosen for matmuls like `key`."""
        return _address(self.candidates[key], self.choices[key])

    def choose(self, key: Key, product: BoundProduct, seconds: Callable[[int], float]) -> None:
        """Time the algorithms of a matmul, unless an equal one has been seen, and choose the fastest. seconds: returns
        the time of the algorithm at an address. Raise Unsupported if there is none."""
        if key in self.choices:
            return
        found = product.candidates(1 if self.deterministic else CANDIDATES)
        if not len(found):
            raise Unsupported(f"cuBLASLt has no algorithm for {key}")
        self.candidates[key] = found
        self.choices.choose(key, len(found), lambda i: seconds(_address(found, i)))

    def stream(self) -> int:
        """Return the current stream, as a CUDA handle."""
        return self.current().ptr

    def current(self) -> Any:
        """Return the current stream."""
        return self.device.xp.cuda.get_current_stream()


class BoundProduct:
    """Matmul of arrays with fixed addresses."""

    def __init__(self, products: Products, x: Array, y: Array, out: Array, transpose_a: bool, transpose_b: bool,
                 addend: Array | None, bias: Array | None, activation: str, before: Array | None,
                 chosen: bool = True, scales: tuple[Array, Array] | None = None) -> None:  # fmt: skip
        self._products = products
        self._arrays = (x, y, out, addend, bias, before)
        self._scales = scales
        source, other = _TYPES[x.dtype.name], _TYPES[y.dtype.name]
        result = _TYPES[out.dtype.name]
        batch = int(np.prod(out.shape[:-2], dtype=np.int64))
        first, second = _matrix(y, transpose_b, batch), _matrix(x, transpose_a, batch)
        target = _matrix(out, False, batch)
        kind = f"{activation} before" if activation == "gelu" and before is not None else activation
        epilogue = _EPILOGUES.get((kind, bias is not None))
        if epilogue is None:
            raise Unsupported(f"activation {activation!r}" + " with a bias" * (bias is not None))
        double = out.dtype.name == "float64"
        fast = products.device.tf32 and x.dtype.name == "float32"
        compute = ComputeType.COMPUTE_32F_FAST_TF32 if fast else ComputeType.COMPUTE_32F
        scale = CudaDataType.CUDA_R_64F if double else CudaDataType.CUDA_R_32F
        self.description = lt.matmul_desc_create(ComputeType.COMPUTE_64F if double else compute, scale)
        for attribute, value in (
            (lt.MatmulDescAttribute.TRANSA, first.transposed), (lt.MatmulDescAttribute.TRANSB, second.transposed),
            (lt.MatmulDescAttribute.EPILOGUE, epilogue),
        ):  # fmt: skip
            if int(value) != _BEGINS_WITH[attribute]:
                self._set(attribute, int(value))
        if products.choices.multiprocessors:
            self._set(lt.MatmulDescAttribute.SM_COUNT_TARGET, products.choices.multiprocessors)
        if bias is not None:
            self._set(lt.MatmulDescAttribute.BIAS_DATA_TYPE, int(_TYPES[bias.dtype.name]))
            self._set(lt.MatmulDescAttribute.BIAS_POINTER, bias.data.ptr)
        if scales is not None:
            self._set(lt.MatmulDescAttribute.A_SCALE_POINTER, scales[1].data.ptr)
            self._set(lt.MatmulDescAttribute.B_SCALE_POINTER, scales[0].data.ptr)
            self._set(lt.MatmulDescAttribute.FAST_ACCUM, int(x.dtype == y.dtype))
        if before is not None:
            self._set(lt.MatmulDescAttribute.EPILOGUE_AUX_DATA_TYPE, int(_TYPES[before.dtype.name]))
            self._set(lt.MatmulDescAttribute.EPILOGUE_AUX_POINTER, before.data.ptr)
            self._set(lt.MatmulDescAttribute.EPILOGUE_AUX_LD, before.shape[-1])
            if batch > 1:
                stride = before.shape[-1] * before.shape[-2]
                self._set(lt.MatmulDescAttribute.EPILOGUE_AUX_BATCH_STRIDE, stride)
        layout = products.layout
        self._kinds = (other, first), (source, second), (result, target)
        self._layouts = layout(other, first, batch), layout(source, second, batch), layout(result, target, batch)
        number = np.float64 if double else np.float32
        self._alpha, self._beta = np.array([1], number), np.array([addend is not None], number)
        self.key: Key = (
            x.dtype.name, out.dtype.name, fast, first, second, target, batch, kind, bias is not None,
            addend is not None, products.choices.multiprocessors,
            tuple(_alignment(a) for a in self._arrays if a is not None),
            *(() if scales is None else (y.dtype.name,)),
        )  # fmt: skip
        if chosen:
            products.choose(self.key, self, self.seconds)

    def _set(self, attribute: lt.MatmulDescAttribute, value: int) -> None:
        data = np.array([value], _attribute_type(attribute))
        lt.matmul_desc_set_attribute(self.description, attribute, data.ctypes.data, data.nbytes)

    @property
    def algorithm(self) -> int:
        """Address of the chosen algorithm."""
        return self._products.algorithm(self.key)

    def new_layouts(self) -> tuple[int, int, int]:
        """Return new, modifiable layouts of both operands and the result, in cuBLASLt's order."""
        first, second, target = (_layout(kind, matrix, 1) for kind, matrix in self._kinds)
        return first, second, target

    def factors(self) -> tuple[Any, tuple[Any, Any]]:
        """Return the scale factors of the matmul and of the addend (0 without one)."""
        return self._alpha, (np.zeros_like(self._alpha), np.ones_like(self._alpha))

    def candidates(self, count: int) -> Any:
        """Return the algorithms that cuBLASLt expects to be fastest, best first; if some multiprocessors are reserved,
        followed by those for all multiprocessors."""
        found = self.expected(count, self._layouts)
        if not self._products.choices.multiprocessors or count == 1:
            return found
        self._set(lt.MatmulDescAttribute.SM_COUNT_TARGET, 0)
        found = np.concatenate([found, self.expected(count, self._layouts)])
        self._set(lt.MatmulDescAttribute.SM_COUNT_TARGET, self._products.choices.multiprocessors)
        return found

    def expected(self, count: int, layouts: tuple[int, int, int]) -> Any:
        """Return the algorithms that cuBLASLt expects to be fastest for these layouts, best first."""
        first, second, target = layouts
        preference = lt.matmul_preference_create()
        limit = np.array([PRODUCTS], np.uint64)
        attribute = lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES
        lt.matmul_preference_set_attribute(preference, attribute, limit.ctypes.data, limit.nbytes)
        found = np.zeros(count, lt.matmul_heuristic_result_dtype)
        number = np.zeros(1, np.int32)
        lt.matmul_algo_get_heuristic(
            self._products.handle, self.description, first, second, target, target, preference, count,
            found.ctypes.data, number.ctypes.data,
        )  # fmt: skip
        lt.matmul_preference_destroy(preference)
        return found[: number[0]]

    def seconds(self, algorithm: int) -> float:
        """Return the time of one matmul with the algorithm at an address; infinite if it does not support the
        arrays."""
        out, addend = self._arrays[2], self._arrays[3]
        saved = out.copy() if addend is not None and addend.data.ptr == out.data.ptr else None
        try:
            taken = self._products.choices.seconds(lambda: self._run(algorithm))
        except lt.cuBLASLtError:
            return float("inf")
        if saved is not None:
            out[...] = saved
        return taken

    def _run(self, algorithm: int) -> None:
        x, y, out, addend, _, _ = self._arrays
        workspace = self._products.workspace_of(0)
        plus = out if addend is None else addend
        first, second, target = self._layouts
        lt.matmul(
            self._products.handle, self.description, self._alpha.ctypes.data, y.data.ptr, first, x.data.ptr, second,
            self._beta.ctypes.data, plus.data.ptr, target, out.data.ptr, target, algorithm,
            workspace.data.ptr, PRODUCTS, self._products.stream(),
        )  # fmt: skip

    def __call__(self) -> None:
        self._run(self.algorithm)


def _matrix(array: Array, transposed: bool, batch: int) -> _Matrix:
    rows, columns = array.shape[-1], array.shape[-2]
    own = array.size // max(1, rows * columns)
    pitch = array.strides[-2] // array.itemsize if columns > 1 and not array.flags.c_contiguous else rows
    apart = rows * columns if array.ndim != 3 else array.strides[0] // array.itemsize
    return _Matrix(rows, columns, transposed, apart if own == batch and batch > 1 else 0, pitch)


def _layout(kind: int, matrix: _Matrix, batch: int) -> int:
    layout = lt.matrix_layout_create(kind, matrix.rows, matrix.columns, matrix.pitch)
    if batch > 1:
        for attribute, value in (
            (lt.MatrixLayoutAttribute.BATCH_COUNT, batch),
            (lt.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, matrix.stride),
        ):
            data = np.array([value], lt.get_matrix_layout_attribute_dtype(attribute))
            lt.matrix_layout_set_attribute(layout, attribute, data.ctypes.data, data.nbytes)
    return layout


@functools.cache
def _attribute_type(attribute: lt.MatmulDescAttribute) -> Any:
    return lt.get_matmul_desc_attribute_dtype(attribute)


def _folded(x: Array, y: Array, out: Array, transpose_a: bool, addend: Array | None, before: Array | None) -> Any:
    """Return the same matmul with the batch folded into the rows, if the second operand is one matrix for the whole
    batch."""
    if out.ndim == 2 or transpose_a or y.size != y.shape[-1] * y.shape[-2] or x.shape[:-2] != out.shape[:-2]:
        return x, y, out, addend, before
    rows = [None if a is None else a.reshape(-1, a.shape[-1]) for a in (x, out, addend, before)]
    return rows[0], y.reshape(y.shape[-2:]), rows[1], rows[2], rows[3]


def _uneven(operand: Array, out: Array) -> bool:
    own = operand.size // max(1, operand.shape[-1] * operand.shape[-2])
    return own not in (1, int(np.prod(out.shape[:-2], dtype=np.int64)))


def _at(array: Array, place: tuple[int, ...], rank: int) -> Array:
    missing = rank - array.ndim
    own = place[missing:] if missing < len(place) else ()
    return array[tuple(0 if n == 1 else i for i, n in zip(own, array.shape, strict=False))]


def _swap_batch_dims(array: Array) -> Array:
    """Return an operand with its two leading dimensions exchanged."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape).swapaxes(0, 1)


def _address(found: Any, index: int) -> int:
    return found.ctypes.data + index * found.itemsize


def _alignment(array: Array) -> int:
    """Return the alignment of the array's address in bytes, at most 16, which algorithms depend on."""
    address = array.data.ptr
    return min(16, address & -address) if address else 16


# Grouped matmuls of runs of rows through cuBLASLt: the host provides the positions of the runs at every step.
#
# The descriptor of a matmul is made once, with an algorithm chosen for `sample_runs`; at a step only its number of rows
# and the addresses of the operands change.


_EVEN = 128
"""Lengths of runs for which algorithms are requested are multiples of this number."""
_ALIGNED = 16
"""Required alignment of rows in bytes, wherever a run starts."""
_TIMED = 4
"""Maximum number of runs for timing algorithms."""
_LANES = (2, 1)
"""Possible numbers of lanes; the first is used without timing."""


class RowProducts:
    """Grouped matmuls of runs of rows, see `Device.products_of_rows`. Raise Unsupported if cuBLASLt does not support
    the element type, or rows are not aligned for it."""

    def __init__(self, products: Products, x: Array, y: Array, out: Array, transpose_b: bool, outer: bool) -> None:
        self._products, self._arrays, self._outer = products, (x, y, out), outer
        rows, matrices = x.shape[0], (out if outer else y).shape[0]
        if any(each.shape[-1] * each.itemsize % _ALIGNED or each.data.ptr % _ALIGNED for each in self._arrays):
            raise Unsupported("rows that begin anywhere")
        if not all(each.size for each in self._arrays):
            raise Unsupported("no elements")
        even = min(rows, -(-rows // matrices // _EVEN) * _EVEN)
        one = (x[:even], y[:even], out[0]) if outer else (x[:even], y[0], out[:even])
        self._bound = products.bound(*one, outer, transpose_b)
        self._layouts = self._bound.new_layouts()
        self._alpha, self._betas = self._bound.factors()
        self._choose(sample_runs(rows, matrices, _TIMED))

    def _choose(self, runs: Sequence[Run]) -> None:
        """Choose the algorithm that is fastest for such runs in lanes, and then the number of lanes."""
        products, choices = self._products, self._products.choices
        self._key = "rows", self._bound.key, tuple(runs)
        products.choose(self._key, self._bound, lambda algorithm: self._seconds(runs, algorithm, _LANES[0]))
        self._of_lanes = "lanes", *self._key
        if self._of_lanes not in choices:
            ways = _LANES[:1] if products.deterministic else _LANES
            chosen = products.algorithm(self._key)
            choices.choose(self._of_lanes, len(ways), lambda i: self._seconds(runs, chosen, ways[i]))

    def _seconds(self, runs: Sequence[Run], algorithm: int, lanes: int) -> float:
        try:
            return self._products.choices.seconds(lambda: self._all(runs, algorithm, lanes, strict=True))
        except lt.cuBLASLtError:
            return float("inf")

    def __call__(self, given: Iterable[tuple[int, slice]]) -> None:
        """Enqueue the matmuls on the current stream."""
        x, _, out = self._arrays
        runs = runs_of(given, x.shape[0], summed=self._outer)
        for matrix in matrices_without_runs(runs, out.shape[0]) if self._outer else ():
            self._zero(slice(matrix, matrix + 1))
        for rows in () if self._outer else rows_outside(runs, x.shape[0]):
            self._zero(rows)
        chosen = self._products.choices[self._of_lanes]
        self._all(runs, self._products.algorithm(self._key), _LANES[chosen])

    def _zero(self, place: slice) -> None:
        part = self._arrays[2][place]
        part.data.memset_async(0, part.nbytes, self._products.current())

    def _all(self, runs: Sequence[Run], algorithm: int, lanes: int, strict: bool = False) -> None:
        """Launch the matmuls of runs. strict: raise cuBLASLt's error if the algorithm does not support one of them."""
        first, *others = lanes_of(runs, lanes)
        device = self._products.device
        begun = device.signal() if any(others) else None
        for own in filter(None, others):
            with device.stream("products"):
                device.wait(begun)
                self._lane(own, algorithm, 1, strict)
        self._lane(first, algorithm, 0, strict)
        if begun is not None:
            with device.stream("products"):
                ended = device.signal()
            device.wait(ended)

    def _lane(self, runs: Sequence[Run], algorithm: int, number: int, strict: bool) -> None:
        room = self._products.workspace_of(number).data.ptr, PRODUCTS, self._products.stream()
        for run in runs:
            self._run(run, algorithm, room, strict)

    def _run(self, run: Run, algorithm: int, room: tuple[int, int, int], strict: bool) -> None:
        x, y, out = self._arrays
        first, second, target = self._layouts
        count = np.array([run.end - run.begin], np.uint64)
        for layout in (first, second) if self._outer else (second, target):
            lt.matrix_layout_set_attribute(layout, lt.MatrixLayoutAttribute.COLS, count.ctypes.data, count.nbytes)
        right, result = (run.begin, run.matrix) if self._outer else (run.matrix, run.begin)
        place = _entry(out, result)
        beta = self._betas[run.adds].ctypes.data
        operands = (self._products.handle, self._bound.description, self._alpha.ctypes.data, _entry(y, right), first,
                    _entry(x, run.begin), second, beta, place, target, place, target)  # fmt: skip
        try:
            lt.matmul(*operands, algorithm, *room)
        except lt.cuBLASLtError:  # the algorithm does not support this number of rows
            found = () if strict else self._bound.expected(1, self._layouts)
            if not len(found):
                raise
            lt.matmul(*operands, found.ctypes.data, *room)


def _entry(array: Any, place: int) -> int:
    return array.data.ptr + place * array.strides[0]
