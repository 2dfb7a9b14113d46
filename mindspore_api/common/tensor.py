"""`Tensor`: an array with MindSpore's interface outside of a compiled graph. Writing to a view writes to the tensor
that owns its elements."""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from mspc.ir.diagnostics import MspcError, html_table, value_repr
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, INT64, STRING, UINT64, DType, TensorType, dtype_of
from mspc.mindspore_api.common.dtype import promoted_scalar
from mspc.mindspore_api.common.initializers import InitialValue, as_initializer, checked_shape
from mspc.mindspore_api.common.seed import eager_seeds
from mspc.mindspore_api.communication.group import ranks_of
from mspc.mindspore_api.errors import ApiIndexError, ApiRuntimeError, ApiTypeError, ApiValueError, caller_location
from mspc.mindspore_api.ops.checked import LEAKS, refuse
from mspc.mindspore_api.ops.eager import register_session
from mspc.mindspore_api.ops.function_arguments import sizes_of
from mspc.mindspore_api.ops.method_table import find_method, method_names, misfit, respelled
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.bases import promoted
from mspc.ops.cpu.blocks import copied


class View:
    """Elements of a tensor's memory at an offset, with strides.

    root: the owning tensor, which is no view. seen: its array at the time, of which `array` is a part.
    """

    def __init__(self, root: Any, seen: np.ndarray, array: np.ndarray) -> None:
        self.root = root
        self.seen = seen
        self._offset = array.__array_interface__["data"][0] - seen.__array_interface__["data"][0]
        self._shape, self._dtype, self._strides = array.shape, array.dtype, array.strides

    def follow(self, tensor: Any) -> None:
        """Set `tensor` to the current elements. A view of a parameter keeps its values: reading the current ones would
        need communication of the ranks that train it."""
        if not self.root.is_followed or tensor._array is None:
            return
        now = self.root.array
        if now is self.seen:
            return
        if not _is_laid_out_alike(now, self.seen):
            tensor._view = None  # the whole tensor was replaced by another one
            return
        tensor._array, self.seen = self._part_of(now), now

    def write(self, tensor: Any, before: np.ndarray) -> None:
        """Write the new values of `tensor`, which had the array `before`, into the tensor that it is a view of."""
        root, held, new = self.root, self.root.array, tensor._array
        if new.shape != self._shape or new.dtype != self._dtype or not _is_laid_out_alike(held, self.seen):
            tensor._view = None
            return
        written = np.array(held, order="K")
        part = self._part_of(written)
        if root.is_followed and 0 not in part.strides:
            part[...] = new
        else:  # elements that were not written may be older than the parameter's, or several may be in one place
            part[new != before] = new[new != before]
        if root.is_followed:
            tensor._array, self.seen = part, written
        root.array = written

    def _part_of(self, whole: np.ndarray) -> np.ndarray:
        memory = whole.reshape(-1, order="A").view(np.uint8)
        return np.ndarray(self._shape, self._dtype, memory, self._offset, self._strides)


class WholeView:
    """All elements of a tensor made by an initializer, as with `Tensor(ops.zeros(2))`."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def follow(self, tensor: Any) -> None:
        """Set `tensor` to the current elements."""
        lazy = self.root.initial
        if not self.root.is_followed or (lazy is not None and lazy is tensor._lazy):
            return
        if lazy is None:
            tensor._array, tensor._lazy = self.root.array, None
        else:
            tensor._array, tensor._lazy = None, lazy

    def write(self, tensor: Any, before: np.ndarray) -> None:
        """Write the new values of `tensor`, which had the array `before`, into the tensor that it is a view of."""
        root, new = self.root, tensor._array
        if new.shape != root.shape or new.dtype != root.dtype.numpy:
            tensor._view = None
        elif root.is_followed:
            root.array = new
        else:
            root.array = np.where(new != before, new, root.array)


class IndexedView:
    """Elements chosen by an index with arrays, which are copies. Writes go to the original elements, but the copies do
    not follow other writes, as in MindSpore."""

    def __init__(self, root: Any, index: Any) -> None:
        self.root = root
        self.index = index

    def follow(self, tensor: Any) -> None:
        """Do nothing: the elements are copies."""

    def write(self, tensor: Any, before: np.ndarray) -> None:
        """Put the new values of `tensor` to their places."""
        if tensor._array.shape == before.shape:
            self.root[self.index] = tensor._array


def may_share(array: np.ndarray, other: np.ndarray | None) -> bool:
    """Return whether two arrays are views of one memory."""
    return other is not None and _owner(array) is _owner(other)


def note_view(made: Any, source: Any, array: np.ndarray | None) -> None:
    """Mark `made` as a view of `source` if its array is in the memory of `array`, the array of `source`."""
    while isinstance(source._view, WholeView):
        source = source._view.root
    known = source._view
    is_view = isinstance(known, View)
    seen = known.seen if is_view else array
    if seen is not None and seen.flags.forc and (is_view or seen.shape == source.shape):
        made._view = View(known.root if is_view else source, seen, made._array)


def note_whole(made: Any, source: Any) -> None:
    """Mark `made`, which has the initializer of `source`, as a view of it."""
    made._view = source._view if isinstance(source._view, WholeView) else WholeView(source)


def note_views(results: Any, operands: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
    """Mark results as views of the operands that own their memory, as after a reshape."""
    for made in results if isinstance(results, tuple) else (results,):
        for operand, array in zip(operands, arrays, strict=False):
            if may_share(made.array, array) and hasattr(operand, "is_followed"):
                note_view(made, operand, array)
                break


def _owner(array: np.ndarray) -> Any:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _is_laid_out_alike(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype == other.dtype and one.strides == other.strides


class TensorOperators:
    """Mixin of Tensor, which supplies `array` and `_derived`."""

    array: np.ndarray
    _derived: Any

    def _binary(
        self, other: Any, function: Callable[..., Any], swapped: bool, divide: bool = False, symbol: str = ""
    ) -> Any:
        """Return `function` of both operands; a `symbol` belongs to an operator on integers and Bool only."""
        left = self.array
        if isinstance(other, (TensorOperators, np.ndarray)):
            right = other.array if isinstance(other, TensorOperators) else other
            kind = promoted(dtype_of(left.dtype), dtype_of(right.dtype))
        elif isinstance(other, (bool, int, float, np.generic)):
            right = other
            kind = promoted_scalar(dtype_of(left.dtype), other.item() if isinstance(other, np.generic) else other)
        else:
            return NotImplemented
        if divide and not kind.has_gradient:
            kind = FLOAT32
        if function is np.matmul and isinstance(other, TensorOperators) and self.dtype.is_float != other.dtype.is_float:
            kinds = f"{self.dtype} and {other.dtype}"
            raise ApiTypeError(f"operator @ takes two tensors of floats or of integers, not {kinds}")
        if symbol and kind.is_float:
            raise ApiTypeError(f"operator {symbol} takes integers and Bool, not {kind}")
        try:
            operands = (np.asarray(left, kind.numpy), np.asarray(right, kind.numpy))
        except OverflowError:
            raise ApiValueError(f"{value_repr(right)} is no number of {kind}") from None
        try:
            made = function(*(operands[::-1] if swapped else operands))
            if function is np.matmul:  # NumPy's matmul of BFloat16 is Float32
                made = made.astype(kind.numpy, copy=False)
            return self._derived(made, other)
        except TypeError:
            name = getattr(function, "__name__", "operator")
            raise ApiTypeError(f"{name}() takes no {kind}") from None
        except ValueError as error:
            if function is np.power and "power" in str(error):
                raise ApiValueError("operator **: integers have no negative powers that are integers") from None
            raise ApiValueError(f"shapes {left.shape} and {np.shape(right)} do not fit") from None

    def __neg__(self) -> Self:
        if self.array.dtype == bool:
            raise ApiTypeError("operator -: the tensor is Bool, which has no sign; logical_not turns it round")
        return self._derived(-self.array)

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self._derived(np.abs(self.array))

    def __invert__(self) -> Self:
        if self.array.dtype.kind not in "biu":
            raise ApiTypeError(f"operator ~ takes integers and Bool, not {dtype_of(self.array.dtype)}")
        return self._derived(~self.array)

    def __matmul__(self, other: Any) -> Any:
        return self._binary(other, np.matmul, False)

    def __rmatmul__(self, other: Any) -> Any:
        return self._binary(other, np.matmul, True)


def _binary_method(
    function: Callable[..., Any], swapped: bool, divide: bool = False, symbol: str = ""
) -> Callable[..., Any]:
    def method(self: TensorOperators, other: Any) -> Any:
        return self._binary(other, function, swapped, divide, symbol)

    return method


_ARITHMETIC: dict[str, tuple[Any, bool, str]] = {
    "add": (np.add, False, ""), "sub": (np.subtract, False, ""), "mul": (np.multiply, False, ""),
    "truediv": (np.true_divide, True, ""), "floordiv": (np.floor_divide, False, ""), "mod": (np.mod, False, ""),
    "pow": (np.power, False, ""), "and": (np.bitwise_and, False, "&"), "or": (np.bitwise_or, False, "|"),
    "xor": (np.bitwise_xor, False, "^"),
}  # fmt: skip
for _name, (_function, _divide, _symbol) in _ARITHMETIC.items():
    setattr(TensorOperators, f"__{_name}__", _binary_method(_function, False, _divide, _symbol))
    setattr(TensorOperators, f"__r{_name}__", _binary_method(_function, True, _divide, _symbol))
for _name, _function in {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal,
    "ne": np.not_equal,
}.items():  # fmt: skip
    setattr(TensorOperators, f"__{_name}__", _binary_method(_function, False))


SHOWN_ROWS, SHOWN_COLUMNS = 30, 12
"""The largest tensor that a notebook shows as a table."""


_SHARING = frozenset(
    "astype bool broadcast_to byte double expand expand_as flatten float half int long permute positive "
    "ravel reshape reshape_as short squeeze swapaxes swapdims to transpose type type_as view view_as".split()
)
"""Methods whose result is a view of the tensor if there is nothing to compute, as in MindSpore; others copy it."""


class _OnClass(type):
    """`Tensor.abs`, to be called with a tensor."""

    def __getattr__(cls, name: str) -> Any:
        found = _method(name)
        if found is None:
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        return found


class TensorMethods(metaclass=_OnClass):
    """Mixed into Tensor."""

    shape: tuple[int, ...]
    dtype: DType
    asnumpy: Callable[..., np.ndarray]
    alias: Callable[[], Any]

    def __getattr__(self, name: str) -> Any:
        found = _method(name)
        if found is None:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return types.MethodType(found, self)

    def computed(self, name: str, *args: Any) -> Any:
        """Return the result of the method `name`, bypassing an override in this class."""
        function = _method(name)
        assert function is not None
        return function(self, *args)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *method_names()})

    def _repr_html_(self) -> str | None:
        """Return a table for notebooks, or None unless the tensor has one or two dimensions and fits on a page."""
        if len(self.shape) not in (1, 2):
            return None
        rows, columns = (1, *self.shape)[-2:]
        if not (0 < rows <= SHOWN_ROWS and 0 < columns <= SHOWN_COLUMNS):
            return None
        return html_table(f"Tensor {list(self.shape)} {self.dtype}", (), self.asnumpy().reshape(rows, columns))

    def reshape(self, *shape: Any) -> Self:
        """Return the elements in the same order in another shape; one size may be -1. Raise ValueError if it does not
        fit."""
        try:
            return self.computed("reshape", *shape)
        except MspcError:
            raise ApiValueError(f"cannot reshape {self.shape} to {sizes_of(shape)}") from None

    view = reshape

    def contiguous(self) -> Self:
        """Return an alias of the tensor: elements are always contiguous. Writing to one tensor writes to the other."""
        return self.alias()

    @property
    def T(self) -> Self:
        """The dimensions in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Self:
        """The last two dimensions exchanged."""
        return self.swapaxes(-1, -2)


def _method(name: str) -> Callable[..., Any] | None:
    function = find_method(name)
    return None if function is None else _run_at_once(name, function)


@functools.cache
def _run_at_once(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function as a method; its result is always a new tensor, even if there is nothing to compute."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs = respelled(function, kwargs)
        wrong = misfit(name, function, (self, *args), kwargs)
        if wrong:
            raise ApiTypeError(wrong)
        try:
            result = function(self, *args, **kwargs)
        except MspcError:
            raise
        except LEAKS as error:
            if inspect.isfunction(function):
                refuse(f"Tensor.{name}", function, (self, *args), kwargs, error)
            raise
        if name.endswith("_"):
            return self  # changed in place
        if result is not self:
            return result
        return self.alias() if name in _SHARING else self.copy()

    method.__name__ = method.__qualname__ = name
    method.__doc__ = function.__doc__
    method.__dict__["__wrapped__"] = function
    return method


def in_64_bits(numbers: Any) -> np.ndarray:
    """Return the array of a number or of nested lists of numbers. Integers from 2**63 on become UInt64 even next to
    small ones, for which NumPy would make floats. Raise TypeError if a negative integer is in the same list as one of
    these; ValueError if rows differ in length."""
    array = np.array(numbers)
    if array.dtype.kind != "f" or not (np.abs(array) >= 2.0**63).any():
        return array
    exact = np.array(numbers, object)
    if not all(isinstance(number, int | np.integer) for number in exact.flat):
        return array
    if exact.min() < 0:
        raise ApiTypeError(f"a tensor is made of numbers of one element type, not of {numbers!r}", code="E1007")
    return exact.astype(np.uint64)


class Symbol:
    """Dimension of unknown size: `divisor * n + remainder` for some n from 1.

    It is used in the shape of a tensor that declares an input, see `Cell.set_inputs`. Shapes may differ between calls.

    Args:
        max: the largest size, used if it is above `min`. min: the smallest size.
        unique: every dimension that has this symbol has one size.

    Raises TypeError if a number is no integer, `unique` no bool; ValueError if `min` or `divisor` is below 1, or
    `remainder` is not below `divisor`.
    """

    def __init__(self, max: int = 0, min: int = 1, divisor: int = 1, remainder: int = 0, unique: bool = False) -> None:
        numbers = {"max": max, "min": min, "divisor": divisor, "remainder": remainder}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int):
                raise ApiTypeError(f"Symbol: {name} must be an integer, not {value!r}")
        if not isinstance(unique, bool):
            raise ApiTypeError(f"Symbol: unique must be True or False, not {unique!r}")
        for name in ("min", "divisor"):
            if numbers[name] < 1:
                raise ApiValueError(f"Symbol: {name} must be at least 1, not {numbers[name]}")
        if not 0 <= remainder < divisor:
            raise ApiValueError(f"Symbol: remainder must be from 0 to {divisor - 1}, not {remainder}")
        self.max, self.min, self.divisor, self.remainder, self.unique = max, min, divisor, remainder, unique

    def __repr__(self) -> str:
        return f"Symbol(max={self.max}, min={self.min}, divisor={self.divisor}, remainder={self.remainder})"


def is_unknown(shape: Any) -> bool:
    """Return whether a shape has sizes that are known only at a call: None, -1 or a Symbol. Never raises."""
    return isinstance(shape, list | tuple) and any(n is None or isinstance(n, Symbol) or n == -1 for n in shape)


REPLICATED = "replicated"
STORED = "stored"
"""Values of `Tensor.placement` that are no layout."""


class Tensor(TensorMethods, TensorOperators):
    """Tensor of one element type.

    Args:
        input_data: array, number, (nested) list, or another Tensor. Python floats become Float32, ints Int64; NumPy
            arrays keep their element type.
        dtype: element type; None for that of the data.
        shape, init: instead of data: a shape (with dtype) and an initializer that draws the values when they are read.
        const_arg: accepted; every tensor argument of a network may change between calls.

    Raises TypeError if the data are no tensor; ValueError if data and shape are both given, or rows have different
    lengths.
    """

    __array_priority__ = 100
    _pending: Any = None
    owned = False
    """Whether the array has no other owner, so that an identical array object implies identical values."""
    placement: Layout | str | None = None
    """Known placement of the tensor. None: data, sharded by the dataset strategy, such as the script's own tensors and
    the rows that a graph returns. REPLICATED: every rank has all of a tensor that is no data, such as a gradient that a
    graph returned. A Layout: a graph returned this slice. STORED: made only from Parameters, every rank has all of it;
    as an input it is data."""

    _view: View | WholeView | IndexedView | None = None
    """The elements of another tensor that these are; a new value is written to them, too."""
    is_followed = True
    """Whether views of the tensor follow writes to it."""

    declared: tuple[Any, ...] | None = None
    """Sizes, some of them known only at a call: the tensor has no values, and is used in `Cell.set_inputs`."""

    def __init__(
        self, input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None, const_arg: bool = False
    ) -> None:
        self._array: np.ndarray | None = None
        self._lazy: InitialValue | None = None
        if input_data is None and shape is not None:
            kind = FLOAT32 if dtype is None else dtype_of(dtype)
            if init is None and is_unknown(shape):
                self.declared, shape = tuple(shape), [n if isinstance(n, int) and n >= 0 else 0 for n in shape]
            self._lazy = InitialValue(as_initializer("zeros" if init is None else init), checked_shape(shape), kind)
            return
        if input_data is None or init is not None:
            raise ApiValueError("Tensor takes input_data, or shape (with dtype and init)")
        if isinstance(input_data, InitialValue):
            self._lazy = input_data if dtype is None else input_data.restyled(dtype_of(dtype))
            return
        lazy = input_data.initial if isinstance(input_data, Tensor) else None
        if lazy is not None:
            restyled = lazy.restyled if input_data.has_init else lazy.cast  # None: sampled values would change
            self._lazy = lazy if dtype is None else restyled(dtype_of(dtype))
            if self._lazy is not None:
                if self._lazy is lazy:
                    note_whole(self, input_data)
                return
        self._array = as_array(input_data, dtype)
        self.owned = not isinstance(input_data, Tensor)
        if isinstance(input_data, Tensor):
            self.placement = input_data.placement
            if self._array.dtype == input_data.dtype.numpy and input_data.dtype != STRING:
                note_view(self, input_data, self._array)
        if shape is not None and checked_shape(shape) != self._array.shape:
            raise ApiValueError(f"Tensor: the data have shape {self._array.shape}, not {checked_shape(shape)}")

    @staticmethod
    def from_array(array: Any) -> Tensor:
        """Return a tensor that uses `array` without a copy. An array that a device still computes (it has `fetch()`) is
        awaited when the tensor is read."""
        tensor = object.__new__(Tensor)
        tensor._array = None if hasattr(array, "fetch") else np.asarray(array)
        tensor._pending = array if tensor._array is None else None
        tensor._lazy = None
        return tensor

    @staticmethod
    def filled(number: Any, type: TensorType) -> Tensor:
        """Return a tensor with all elements equal to one number; elements are made when the tensor is read."""
        lazy = InitialValue.filled(number, checked_shape(type.shape), type.dtype)
        lazy.description()  # raises for a number outside of the element type
        return Tensor(lazy)

    @staticmethod
    def from_numpy(array: np.ndarray) -> Tensor:
        """Return a tensor that shares the memory of `array`."""
        if not isinstance(array, np.ndarray):
            raise ApiTypeError(f"from_numpy takes a NumPy array, not {type(array).__name__}")
        return Tensor.from_array(array)

    # Properties -----------------------------------------------------------------------------------

    @property
    def array(self) -> np.ndarray:
        """The values; values from an initializer are sampled on first access."""
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
        """Return the values of the initializer. They are read-only, so that `initial` stays valid."""
        assert self._lazy is not None
        array = self._lazy.fill()
        array.flags.writeable = False
        return array

    @property
    def has_init(self) -> bool:
        """Return whether the values are still to be sampled."""
        return self._array is None and self.initial is not None

    @property
    def initial(self) -> InitialValue | None:
        """Initializer of the tensor's current values, sampled already or not; None if they have no initializer."""
        if self._view is not None:
            self._view.follow(self)
        return self._lazy

    def fill_slices(self, slices: tuple[slice, ...] | None = None) -> np.ndarray:
        """Return the values in `slices` (None: all). A tensor that is not sampled yet does not store them."""
        if self.has_init:
            assert self._lazy is not None
            return self._lazy.fill(slices)
        return self.array if slices is None else self.array[slices]

    def init_data(self, *_: Any) -> Tensor:
        """Return the tensor: its values are sampled when they are read, and do not depend on the time."""
        return self

    def asnumpy(self) -> np.ndarray:
        """Return a copy of the values as a NumPy array."""
        return np.array(self.array)

    def numpy(self) -> np.ndarray:
        return self.asnumpy()

    def value(self) -> Tensor:
        """Return the tensor itself, as MindSpore does."""
        return self

    @property
    def data(self) -> Tensor:
        """Another tensor of the same elements. Setting it copies the values of another tensor."""
        return self.alias()

    @data.setter
    def data(self, values: Any) -> None:
        self.assign_value(values)

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
        """Element type and shape for the compiler. Raise TypeError for strings."""
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
        """Return one element as a Python number; without an index the tensor must have exactly one."""
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
        """Return the elements `array` chosen by an index; writing to them writes to this tensor, as in MindSpore."""
        part = Tensor.from_array(array)
        if isinstance(array, np.ndarray) and may_share(array, self._array):
            note_view(part, self, self._array)
        else:
            part._view = IndexedView(self, _plain_index(index))
        return part

    def alias(self) -> Tensor:
        """Return another tensor of the same elements."""
        twin = Tensor(self)
        if not self.is_followed and twin._array is not None:
            twin._array = np.array(twin._array)  # training may write into the array
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
        return derived(array, (self, *others))

    def assign_value(self, other: Any) -> Tensor:
        """Copy the values of another tensor of the same shape."""
        array = as_array(other, self.dtype)
        if array.shape != self.shape:
            raise ApiValueError(f"assign_value: shape {array.shape} is not {self.shape}")
        self.array = array
        return self

    def astype(self, dtype: Any, copy: bool = True) -> Tensor:
        """Return the values in another element type. A tensor that is not sampled yet stays so."""
        cast = self.initial.cast(dtype_of(dtype)) if self.initial is not None else None
        if cast is not None and cast is self._lazy:
            return self.alias()
        return Tensor(cast) if cast is not None else self.computed("astype", dtype, copy)

    def to(self, dtype: Any) -> Tensor:
        """See `astype`."""
        return self.astype(dtype)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Return the tensor itself; a warning says that nothing changes. Gradients are chosen in the call of `grad`,
        and only a Parameter has requires_grad."""
        say_once(
            "requires_grad_",
            f"{place_of_caller()}Tensor.requires_grad_({requires_grad}) has no effect: the arguments of grad() and "
            "value_and_grad() name the tensors to differentiate",
        )
        return self

    def register_hook(self, hook: Any) -> Any:
        """Register a function on the gradient of a tensor that a network computes, or of a Parameter. Raise
        RuntimeError for other tensors, which have no gradient outside of a network."""
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
            self._array, self._lazy, self._view = None, cast, None
        return self


def _why(error: IndexError) -> str:
    text = str(error)
    return "it is made of integers of 64 bits, slices, `...` and None" if text.startswith("only integers") else text


def _plain_index(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_plain_index(i) for i in index)
    return index.array if isinstance(index, Tensor) else index


def as_array(data: Any, dtype: Any = None) -> np.ndarray:
    """Return the array of `Tensor(data, dtype)`. Raise TypeError if `data` is no number, array or list; ValueError for
    nested lists of different lengths."""
    kind = None if dtype is None else dtype_of(dtype)
    if isinstance(data, Tensor):
        array = data.array
        return array if kind is None or kind == data.dtype else array.astype(kind.numpy)
    if isinstance(data, (np.ndarray, np.generic)):
        dtype = data.dtype if kind is None else kind.numpy
        return copied(data) if isinstance(data, np.ndarray) and data.dtype == dtype else np.array(data, dtype)
    if not isinstance(data, (bool, int, float, complex, list, tuple)):
        raise ApiTypeError(f"a tensor is made of numbers, lists and arrays, not of {type(data).__name__}", code="E1007")
    try:
        array = in_64_bits(_unwrapped(data))
    except ValueError:
        raise ApiValueError("the rows of the list have different lengths", code="E1007") from None
    if array.dtype.kind not in "biufc":
        raise ApiTypeError(f"a tensor is made of numbers, not of {data!r}", code="E1007")
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
    """Return a tensor with `array`, computed from `operands`. It is REPLICATED if one of them is and the others belong
    to Parameters. A slice of a global tensor is not marked: it may belong to one rank."""
    made = Tensor.from_array(array)
    shaped = [x for x in operands if isinstance(x, (Tensor, np.ndarray)) and x.shape]
    marks = {getattr(x, "placement", None) for x in shaped}
    if marks and marks <= {REPLICATED, STORED} and made.size >= max(x.size for x in shaped):
        made.placement = REPLICATED if REPLICATED in marks else STORED
    return made


register_session(Tensor, caller_location, ranks_of, derived, eager_seeds, note_views)


def frombuffer(buffer: Any, *, dtype: Any = FLOAT32, count: int = -1, offset: int = 0) -> Any:
    """Return a vector that shares the bytes of a buffer from `offset` on, `count` elements or all. Raise ValueError if
    the buffer is too short."""
    try:
        return Tensor.from_array(np.frombuffer(buffer, dtype_of(dtype).numpy, count, offset))
    except ValueError as error:
        raise ApiValueError(f"frombuffer(): {error}") from None
