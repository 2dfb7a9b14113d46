"""A `Tensor` is an array with MindSpore's interface, for everything outside a compiled graph. NumPy does the work."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from mspc.api.common.initial_values import InitialValue, as_initializer, checked_shape
from mspc.api.common.large_integers import in_64_bits
from mspc.api.common.seed import eager_seeds
from mspc.api.common.symbol import is_unknown
from mspc.api.common.tensor_methods import TensorMethods
from mspc.api.common.tensor_operators import TensorOperators
from mspc.api.common.tensor_views import IndexedView, View, may_share, note_view, note_views
from mspc.api.communication.groups import ranks_of
from mspc.api.errors import ApiIndexError, ApiRuntimeError, ApiTypeError, ApiValueError, caller_location
from mspc.api.ops.eager import register_session
from mspc.api.setting_kind import place_of_caller, say_once
from mspc.ir.diagnostics import value_repr
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, INT64, STRING, UINT64, DType, TensorType, dtype_of
from mspc.ops.cpu.blocks import copied

REPLICATED = "replicated"
STORED = "stored"
"""Values of `Tensor.placement` that are no layout."""


class Tensor(TensorMethods, TensorOperators):
    """A tensor of one element type.

    Args:
        input_data: array, number, (nested) list, or another Tensor. Python floats become Float32, ints
            Int64; NumPy
            arrays keep their element type.
        dtype: element type; None keeps the data's.
        shape, init: instead of data: a shape (with dtype) and an initializer that draws the values
            when they are read.
        const_arg: accepted; every tensor that a network is called with may change from call to call.

    Raises:
        TypeError: the data are no tensor. ValueError: data and shape are both given, or rows have
        different lengths.
    """

    __array_priority__ = 100
    _pending: Any = None
    owned = False
    """Whether nobody else holds the array, so that the same array means the same values."""
    placement: Layout | str | None = None
    """What is known of where the tensor comes from. None: data, which arrive as the dataset strategy says, as the
    script's own tensors and the rows that a graph hands out. REPLICATED: every rank holds all of what is no data,
    such as a gradient that a graph handed out. A Layout: a graph handed out this slice. STORED: made of Parameters
    alone, every rank has all of it; data where it is fed."""

    _view: View | IndexedView | None = None
    """Which elements of another tensor these are; a new value goes there, too."""
    is_followed = True
    """Whether tensors with some of its elements show what is written to it."""

    declared: tuple[Any, ...] | None = None
    """Sizes of which some are known at a call only: the tensor has no values, and is in `Cell.set_inputs`."""

    def __init__(
        self, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
    ) -> None:
        self._array: np.ndarray | None = None
        self._lazy: InitialValue | None = None
        if input_data is None and shape is not None:
            kind = FLOAT32 if dtype is None else dtype_of(dtype)
            if init is None and is_unknown(shape):
                self.declared, shape = tuple(shape), [n if isinstance(n, int) and n >= 0 else 0 for n in shape]
            self._lazy = InitialValue(
                as_initializer("zeros" if init is None else init), checked_shape(shape), kind
            )
            return
        if input_data is None or init is not None:
            raise ApiValueError("Tensor takes input_data, or shape (with dtype and init)")
        if isinstance(input_data, InitialValue):
            self._lazy = input_data if dtype is None else input_data.restyled(dtype_of(dtype))
            return
        lazy = input_data.initial if isinstance(input_data, Tensor) else None
        if lazy is not None:
            self._lazy = lazy if dtype is None else _redrawn(lazy, input_data.has_init, dtype_of(dtype))
            if self._lazy is not None:
                return
        self._array = as_array(input_data, dtype)
        self.owned = not isinstance(input_data, Tensor)
        if isinstance(input_data, Tensor):
            self.placement = input_data.placement
        if shape is not None and checked_shape(shape) != self._array.shape:
            raise ApiValueError(
                f"Tensor: the data have shape {self._array.shape}, not {checked_shape(shape)}"
            )

    @staticmethod
    def from_array(array: Any) -> Tensor:
        """A tensor around `array`, which is not copied. An array that a device still computes (it has `fetch()`) is
        waited for when somebody reads the tensor."""
        tensor = object.__new__(Tensor)
        tensor._array = None if hasattr(array, "fetch") else np.asarray(array)
        tensor._pending = array if tensor._array is None else None
        tensor._lazy = None
        return tensor

    @staticmethod
    def filled(number: Any, type: TensorType) -> Tensor:
        """A tensor of one number, of which no element is made before somebody reads it."""
        lazy = InitialValue.filled(number, checked_shape(type.shape), type.dtype)
        lazy.description()  # refuses what the element type cannot hold
        return Tensor(lazy)

    @staticmethod
    def from_numpy(array: np.ndarray) -> Tensor:
        """A tensor that shares the memory of `array`."""
        if not isinstance(array, np.ndarray):
            raise ApiTypeError(f"from_numpy takes a NumPy array, not {type(array).__name__}")
        return Tensor.from_array(array)

    # What it is -----------------------------------------------------------------------------------

    @property
    def array(self) -> np.ndarray:
        """The values; sampled now when the tensor came from an initializer."""
        if self._view is not None:
            self._view.follow(self)
        if self._array is None:
            if self.declared is not None:
                raise ApiValueError(f"a tensor of shape {self.shape} has no values: it declares inputs in set_inputs")
            if self._pending is not None:
                self._array = np.asarray(self._pending.fetch())
                self._pending = None
                return self._array
            self._array = self._sampled()
        return self._array

    @array.setter
    def array(self, array: np.ndarray) -> None:
        view, before = self._view, self._array
        self._array = array
        self._lazy = None
        if view is not None and before is not None:
            view.write(self, before)

    def _sampled(self) -> np.ndarray:
        """The values of the initializer. Nobody may change them in place, so that `initial` stays true of them."""
        assert self._lazy is not None
        array = self._lazy.fill()
        array.flags.writeable = False
        return array

    @property
    def has_init(self) -> bool:
        """Whether the values are still to be sampled."""
        return self._array is None and self._lazy is not None

    @property
    def initial(self) -> InitialValue | None:
        """How an initializer makes the values that the tensor has now, sampled already or not; None where it does
        not."""
        return self._lazy

    def fill_slices(self, slices: tuple[slice, ...] | None = None) -> np.ndarray:
        """The values in `slices` (None: all); a tensor that was not sampled yet stores nothing of them."""
        if self.has_init:
            assert self._lazy is not None
            return self._lazy.fill(slices)
        return self.array if slices is None else self.array[slices]

    def init_data(self, *_: Any) -> Tensor:
        """Returns the tensor: its values are sampled when somebody reads them, and are the same whenever that is."""
        return self

    def asnumpy(self) -> np.ndarray:
        """The values as a NumPy array (its own memory)."""
        return np.array(self.array)

    def numpy(self) -> np.ndarray:
        return self.asnumpy()

    def value(self) -> Tensor:
        """Return the tensor itself, as MindSpore does."""
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        if self.declared is not None:
            return tuple(size if isinstance(size, int) else -1 for size in self.declared)
        if self._array is None and self._lazy is not None:
            return self._lazy.shape
        if self._pending is not None:
            return self._pending.shape
        return self.array.shape

    @property
    def dtype(self) -> DType:
        if self._array is None and self._lazy is not None:
            return self._lazy.dtype
        kind = (self.array if self._pending is None else self._pending).dtype
        return STRING if isinstance(kind, np.dtype) and kind.kind in "US" else dtype_of(kind)

    @property
    def type(self) -> TensorType:
        """Element type and shape as the compiler sees them. Raises TypeError for strings."""
        return TensorType(dtype_of(self.dtype), self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.type.nbytes

    # Python protocols -----------------------------------------------------------------------------

    def item(self, index: Any = None) -> Any:
        """One element as a Python number; without an index the tensor must have exactly one."""
        if index is None and self.size != 1:
            raise ApiValueError(f"item() needs a tensor with one element, not shape {self.shape}")
        return self.array.item() if index is None else self.array.item(index)

    def tolist(self) -> Any:
        return self.array.tolist()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.array(self.array, dtype=dtype)

    def __repr__(self) -> str:
        if self.declared is not None:
            return f"Tensor(shape={list(self.shape)}, dtype={self.dtype}, value=)"
        values = np.array2string(self.array, separator=", ", prefix="Tensor(value=")
        return f"Tensor(shape={list(self.shape)}, dtype={self.dtype}, value={values})"

    def __str__(self) -> str:
        return str(self.array)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else str(self)

    def __len__(self) -> int:
        if not self.shape:
            raise ApiTypeError("a tensor without dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise ApiTypeError("a tensor without dimensions cannot be iterated")
        return (self._part(row, i) for i, row in enumerate(self.array))

    def __bool__(self) -> bool:
        return bool(self._single("bool"))

    def __int__(self) -> int:
        return int(self._single("int"))

    def __float__(self) -> float:
        return float(self._single("float"))

    def __index__(self) -> int:
        if not (self.dtype.is_integer and self.size == 1):
            raise ApiTypeError(f"only a tensor with one integer can be an index, not {self.type}")
        return int(self.item())

    def _single(self, kind: str) -> Any:
        if self.size != 1:
            raise ApiValueError(f"{kind}() needs a tensor with one element, not shape {self.shape}")
        return self.array.item()

    __hash__ = object.__hash__

    def __getitem__(self, index: Any) -> Tensor:
        try:
            return self._part(self.array[_plain_index(index)], index)
        except IndexError as error:
            raise ApiIndexError(f"index {value_repr(index)} of a tensor of shape {self.shape}: {_why(error)}") from None

    def _part(self, array: np.ndarray | np.generic, index: Any) -> Tensor:
        """The elements that an index chooses, `array`; writing to them writes to this tensor, as in MindSpore."""
        part = Tensor.from_array(array)
        if isinstance(array, np.ndarray) and may_share(array, self._array):
            note_view(part, self, self._array)
        else:
            part._view = IndexedView(self, _plain_index(index))
        return part

    def alias(self) -> Tensor:
        """Another tensor of the same elements."""
        array = self.array
        twin = Tensor.from_array(array if self.is_followed else np.array(array))  # training may write into the array
        twin.placement = self.placement
        note_view(twin, self, twin._array if array.flags.forc else None)
        return twin

    def __setitem__(self, index: Any, item: Any) -> None:
        array = np.array(self.array)
        try:
            array[_plain_index(index)] = item.array if isinstance(item, Tensor) else item
        except IndexError as error:
            raise ApiIndexError(f"index {value_repr(index)} of a tensor of shape {self.shape}: {_why(error)}") from None
        except ValueError as error:
            raise ApiValueError(f"elements {index!r} of a tensor of shape {self.shape}: {error}") from None
        self.array = array

    def __deepcopy__(self, memo: Any) -> Tensor:
        return self.copy()

    def copy(self) -> Tensor:
        twin = Tensor.from_array(np.array(self.array))
        twin.placement = self.placement
        return twin

    def _derived(self, array: Any, *others: Any) -> Tensor:
        """A tensor around what was computed from this one and others."""
        return derived(array, (self, *others))

    def assign_value(self, other: Any) -> Tensor:
        """Take over the values of another tensor of the same shape."""
        array = as_array(other, self.dtype)
        if array.shape != self.shape:
            raise ApiValueError(f"assign_value: shape {array.shape} is not {self.shape}")
        self.array = array
        return self

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """The values in another element type; of a tensor that is not sampled yet none is sampled."""
        cast = self.initial.cast(dtype_of(dtype)) if self.initial is not None else None
        return Tensor(cast) if cast is not None else self.computed("astype", dtype, copy)

    def to(self, dtype: Any) -> Tensor:
        """See `astype`."""
        return self.astype(dtype)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Returns the tensor itself: `grad` says which gradients there are, and requires_grad is a Parameter's, as a
        warning says."""
        say_once(
            "requires_grad_",
            f"{place_of_caller()}Tensor.requires_grad_({requires_grad}) changes nothing: grad() and value_and_grad() "
            "are told by which tensors to differentiate",
        )
        return self

    def register_hook(self, hook: Any) -> Any:
        """Register a function on the gradient of a tensor that a network computes, or of a Parameter. Other tensors
        outside of a network have no gradient of their own. Raises RuntimeError."""
        raise ApiRuntimeError(
            "register_hook: this tensor is no part of a network",
            ["call it in the function that is differentiated, on the argument, or make the tensor a Parameter"],
        )

    def set_dtype(self, dtype: Any) -> Tensor:
        kind = dtype_of(dtype)
        cast = self.initial.cast(kind) if self.initial is not None else None
        if cast is None:
            self.array = self.array.astype(kind.numpy)
        else:
            self._array, self._lazy = None, cast
        return self


def _why(error: IndexError) -> str:
    """What NumPy says of an index, without its own names for indices."""
    text = str(error)
    return "it is made of integers of 64 bits, slices, `...` and None" if text.startswith("only integers") else text


def _plain_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_plain_index(i) for i in index)
    return index.array if isinstance(index, Tensor) else index


def _redrawn(lazy: InitialValue, undrawn: bool, dtype: DType) -> InitialValue | None:
    """The values in another element type; where they were sampled already, only if they stay these values."""
    return lazy.restyled(dtype) if undrawn else lazy.cast(dtype)


def as_array(data: Any, dtype: Any = None) -> np.ndarray:
    """The array that `Tensor(data, dtype)` holds.

    Raises:
        TypeError: `data` is no number, array or list. ValueError: nested lists of different lengths.
    """
    kind = None if dtype is None else dtype_of(dtype)
    if isinstance(data, Tensor):
        array = data.array
        return array if kind is None or kind == data.dtype else array.astype(kind.numpy)
    if isinstance(data, (np.ndarray, np.generic)):
        dtype = data.dtype if kind is None else kind.numpy
        return copied(data) if isinstance(data, np.ndarray) and data.dtype == dtype else np.array(data, dtype)
    if not isinstance(data, (bool, int, float, complex, list, tuple)):
        raise ApiTypeError(f"a tensor is made of numbers, lists and arrays, not of {type(data).__name__}")
    try:
        array = in_64_bits(_unwrapped(data))
    except ValueError:
        raise ApiValueError("the rows of the list have different lengths") from None
    if array.dtype.kind not in "biufc":
        raise ApiTypeError(f"a tensor is made of numbers, not of {data!r}")
    if kind is None and array.dtype.kind == "f":
        kind = FLOAT32
    if kind is None and array.dtype.kind in "iu":
        kind = UINT64 if array.dtype == np.uint64 and array.max(initial=0) > np.iinfo(np.int64).max else INT64
    return array if kind is None else array.astype(kind.numpy)


def _unwrapped(data: Any) -> Any:
    if isinstance(data, (list, tuple)):
        return [_unwrapped(item) for item in data]
    return data.array if isinstance(data, Tensor) else data


def derived(array: Any, operands: Iterable[Any]) -> Tensor:
    """A tensor around `array`, made of `operands`: REPLICATED where one of them is and the others are Parameters'. A
    slice of a global tensor is not: it may be the rank's own."""
    made = Tensor.from_array(array)
    shaped = [x for x in operands if isinstance(x, (Tensor, np.ndarray)) and x.shape]
    marks = {getattr(x, "placement", None) for x in shaped}
    if marks and marks <= {REPLICATED, STORED} and made.size >= max(x.size for x in shaped):
        made.placement = REPLICATED if REPLICATED in marks else STORED
    return made


register_session(Tensor, caller_location, ranks_of, derived, eager_seeds, note_views)
