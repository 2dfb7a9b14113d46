"""Interface of `Op.launch` to a GPU, the C++ types of elements, and the sources of kernels.

Operators import nothing of CUDA: the GPU runtime passes a `Device` with its arrays, and they return a function that
enqueues their work on the current stream. Arrays have fixed addresses, so that a launch is made once and called at
every step.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType

Array = Any
"""An array on the GPU, contiguous, whose memory does not move."""

Launch = Callable[[], None]
"""Enqueues an operator's work on the current stream; allocates nothing and does not block."""

RowProducts = Callable[[Iterable[tuple[int, slice]]], None]
"""Enqueues the matmuls of runs of rows, each with its matrix number; runs do not overlap and ascend."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A second place to which an operator writes the new value of a tensor that it updates: element (r, c) of its rows
    of `columns` elements goes to element r * pitch + c of `array`, rounded to the array's element type as `Cast`
    rounds."""

    array: Array
    columns: int
    pitch: int


@dataclass(frozen=True)
class RankSum:
    """An operand that is the sum of arrays in the mapped memory of several ranks. addresses: of every rank's array, in
    the order of additions. own: this rank's index among them. signs: for every rank the address of SIGNS words for each
    of them, in which it receives the signals of the others. state: STATE words of this rank. step: current step; shift:
    of that number in a mark. mark: called at every launch, it returns (the address at which the GPU reports its
    progress, the value to report). held: owner of the addresses."""

    SIGNS: ClassVar[int] = 2
    """Calls whose operand is ready on another rank, and calls that it has ended to read."""
    STATE: ClassVar[int] = 2
    """Calls that have ended, blocks that have ended the running one."""

    addresses: tuple[int, ...]
    own: int
    signs: tuple[int, ...]
    state: Array
    step: Array
    shift: int
    mark: Callable[[], tuple[int, int]]
    held: Any = None


class Sliding(NamedTuple):
    """How a window slides along one dimension: places of padding before and after, stride and dilation."""

    before: int
    after: int
    stride: int
    dilation: int


def nothing() -> None:
    """Do nothing: the launch of an operator that needs no work."""


def all_of(launches: Sequence[Launch]) -> Launch:
    """Return one launch of all, in order."""
    if len(launches) == 1:
        return launches[0]

    def launch() -> None:
        for each in launches:
            each()

    return launch


def in_order(*launches: Launch | None) -> Launch | None:
    """Return one launch of all in order, or None if one of them is None."""
    found = [launch for launch in launches if launch is not None]
    return all_of(found) if len(found) == len(launches) else None


class Kernel(Protocol):
    """A compiled CUDA kernel. Arguments are arrays (their addresses are passed) and NumPy scalars."""

    def __call__(self, grid: int | tuple[int, ...], block: int, arguments: Sequence[Any], shared: int = 0) -> None: ...


class Device(Protocol):
    """A GPU as operators see it.

    xp: CuPy. comm: this rank's communicator. multiprocessors: their number. block_memory: maximum bytes of shared
    memory per block. deterministic: use only algorithms that give the same bits in every run. tf32: matmuls of Float32
    may round their operands to TF32. warp_groups: four warps can multiply tiles in shared memory (wgmma), only on
    compute capability 9.0. step: Int64 array of one element on the GPU: number of the current step, from 1. stop: Int32
    array of one element on the GPU: if it is not 0, operators that update parameters change nothing. rejoined: number
    of times that the main stream has waited for all launches made by `on_side_stream`.
    """

    xp: Any
    comm: Any
    multiprocessors: int
    block_memory: int
    deterministic: bool
    tf32: bool
    warp_groups: bool
    step: Array
    stop: Array
    rejoined: int

    def kernel(self, source: str, name: str) -> Kernel:
        """Return the `extern "C" __global__` function `name` of `source`, compiled by NVRTC behind ops/cuda/prelude.cuh
        and cached on disk."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return a new array, contents undefined."""

    def send(self, host: Any, array: Array) -> None:
        """Copy an array of the host to one of the GPU, on the current stream; at once only from pinned memory."""

    def receive(self, array: Array, host: Any) -> None:
        """Copy an array to one of the host, on the current stream."""

    def copy(self, source: Array, target: Array) -> None:
        """Copy the bytes of an array to one of the same size, on the current stream."""

    def same(self, first: Array, second: Array) -> bool:
        """Whether two arrays begin at one address."""

    def on_side_stream(self, name: str, launch: Launch) -> None:
        """Begin a launch once the current stream has come here, on a stream of this name; the step ends after it."""

    def scratch(self, nbytes: int) -> Array:
        """Return bytes for the running launch alone, aligned to 256: the next launch of any operator may overwrite
        them."""

    def matmul(self, x: Array, y: Array, out: Array, transpose_a: bool, transpose_b: bool, *,
               addend: Array | None = None, bias: Array | None = None, activation: str = "",
               before: Array | None = None) -> Launch | None:  # fmt: skip
        """Return the launch of out = activation(x @ y + addend + bias) over the last two dimensions; leading ones are a
        batch.

        addend has the shape of out and may be out. bias has its last dimension. activation is "" or "gelu" (the tanh
        formula; `before` then takes the value before it) or "gelu_gradient" (out = (x @ y) * gelu'(before)). None if
        the libraries do not support the element type or the operations after the matmul.
        """

    def scaled_matmul(self, x: Array, y: Array, x_scale: Array, y_scale: Array, out: Array, transpose_a: bool,
                      transpose_b: bool) -> Launch | None:  # fmt: skip
        """Return the launch of out = (x @ y) * x_scale * y_scale for Float8 operands, whose scales in Float32 are read
        at every launch; None if the libraries do not support these types, sizes or scales."""

    def products_of_rows(self, x: Array, y: Array, out: Array, *, transpose_b: bool = False,
                         outer: bool = False) -> RowProducts | None:  # fmt: skip
        """Return grouped matmuls of runs of rows of x [rows, k]; the runs are passed at launch. out[run] = x[run] @
        y[i], with y [matrices, k, n] or [matrices, n, k] transposed; rows in no run become zeros. With `outer`: out[i]
        = x[run]^T @ y[run], y [rows, n], summed over the runs of i, zeros if there is none. None if the libraries do
        not support the element type or these sizes."""

    def host_query(self, arrays: Sequence[Array], run: Callable[..., None], ahead: Launch | None = None) -> Launch:
        """Return a launch that waits for arrays and calls `run` with their elements as NumPy arrays, so that the host
        decides the work. ahead: a launch that makes some of the arrays."""

    def convolution(self, kind: str, image: Array, weight: Array, result: Array,
                    windows: Sequence[Sliding]) -> Launch | None:  # fmt: skip
        """Return a convolution result = image * weight, or one of its gradients; None if there is none for these
        arrays.

        Arrays are views [batch, channels, ...], [out channels, channels / groups, ...] and [batch, out channels, ...]
        of any strides. kind names the array that is computed from the other two: "forward" the result, "image" and
        "weight" their gradients from the result's gradient.
        """

    def fastest(self, kind: tuple[Any, ...], launches: Sequence[Launch]) -> Launch:
        """Return the fastest of several launches of the same work, measured once for every `kind`; the first one if the
        device is deterministic."""

    def attention(self, query: Array, key: Array, value: Array, out: Array, statistics: Array, *, scale: float,
                  causal: str = "", addend: Array | None = None,
                  gradients: tuple[Array, Array, Array, Array] | None = None) -> Launch | None:  # fmt: skip
        """Return the launch of out = softmax(scale * query @ key^T + addend) @ value in one kernel; None if there is
        none for these arrays.

        Operands are views [batch, heads, sequence, depth] of any strides but 1 in the last dimension; key and value may
        have fewer heads, if their number divides the query's. statistics[batch, heads, queries, 1] (Float32) takes
        the logarithm of each sum of exp(score). causal: "" or a query looks at keys up to its place only, counted from
        the beginnings ("top") or the ends ("bottom") of both sequences. addend has the operands' element type, may have
        batch 1 and heads 1, and may be in scratch memory. With gradients = (dout, dquery, dkey, dvalue), `out` and
        `statistics` are read and the last three are filled.
        """


C_TYPES = {
    "Bool": "bool", "Int8": "signed char", "Int16": "short", "Int32": "int", "Int64": "long long",
    "UInt8": "unsigned char", "UInt16": "unsigned short", "UInt32": "unsigned int", "UInt64": "unsigned long long",
    "Float8E4M3": "e4m3", "Float8E5M2": "e5m2",
    "Float16": "f16", "BFloat16": "bf16", "Float32": "float", "Float64": "double",
}  # fmt: skip
"""The C++ type of an element in memory."""


def c_type(dtype: DType) -> str:
    """Return the C++ type of an element in memory."""
    return C_TYPES[dtype.name]


def computing_type(dtype: DType) -> str:
    """Return the C++ type in which an element is computed: narrower floats are widened to float."""
    return "float" if dtype.is_float and dtype.itemsize < 4 else C_TYPES[dtype.name]


# C++ and CUDA sources, each in a file beside the modules that compile it ------------------------------


_PACKAGE = Path(__file__).resolve().parents[1]
_INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)
_PLACEHOLDER = re.compile(r"@(\w+)@")


def source_text(path: str, **values: object) -> str:
    """Return the text of a file, with the files that it includes by `#include "..."` and a value in place of each
    `@name@`. Raise ValueError if a placeholder has no value, or a value no placeholder. path: from the package's
    folder, as "ops/cuda/transpose.cu"."""
    parts = _parts(path)
    if values.keys() != set(parts[1::2]):
        raise ValueError(f"{path} has the placeholders {sorted(set(parts[1::2]))}, the values are {sorted(values)}")
    return "".join(str(values[part]) if i % 2 else part for i, part in enumerate(parts))


@functools.cache
def _parts(path: str) -> tuple[str, ...]:
    """Return texts and names of placeholders by turns."""
    return tuple(_PLACEHOLDER.split(_text(path)))


@functools.cache
def _text(path: str) -> str:
    text = (_PACKAGE / path).read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: _text(posixpath.join(posixpath.dirname(path), found[1])), text)
