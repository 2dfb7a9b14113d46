"""Arrays with NumPy's interface, on which kernels run: every operation on one is written as StableHLO.

An array is a part of a cell, as NumPy's views are parts of memory. NumPy itself makes the views, of memory that is
never read: their strides say which elements an array has."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np

from mspc.ops.fused.kernel import divided
from mspc.output.stablehlo.lowering import Combine
from mspc.output.stablehlo.text import Content, NotWritten, Ref

VIEWS = ("reshape", "transpose", "swapaxes", "squeeze", "ravel", "moveaxis", "expand_dims", "broadcast_to", "flip",
         "split", "diagonal")  # fmt: skip
"""Functions of NumPy that make views of arrays."""
_OPERATORS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "pow": "power",
    "mod": "remainder", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift",
    "rshift": "right_shift", "matmul": "matmul", "lt": "less", "le": "less_equal", "gt": "greater", "eq": "equal",
    "ge": "greater_equal", "ne": "not_equal", "neg": "negative", "abs": "absolute", "invert": "invert",
    "pos": "positive",
}  # fmt: skip
_METHODS = ("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "clip", "cumsum", "cumprod", "take",
            "repeat", "sort", "argsort", "std", "var", "round", "conj", "dot", "flatten", *VIEWS)  # fmt: skip
"""Methods that are functions of the array module."""


class Cell:
    """A content that may change, and the memory of which NumPy makes views."""

    def __init__(self, content: Content) -> None:
        self.content = content
        self.memory = np.zeros(content.shape, np.int8)


class _Bits(Cell):
    """The bits of an array as elements of another type."""

    def __init__(self, array: HloArray, dtype: np.dtype[Any]) -> None:
        self.array, self.dtype = array, dtype
        self.memory = np.zeros(self.content.shape, np.int8)

    @property
    def content(self) -> Content:  # type: ignore[override]  # that of the array
        return self._as(self.dtype, self.array.content)

    @content.setter
    def content(self, content: Content) -> None:
        self.array.store(self._as(self.array.dtype, content))

    def _as(self, dtype: np.dtype[Any], x: Content) -> Content:
        xp, own = self.array.xp, np.dtype("u1") if dtype.kind == "b" else dtype
        x = xp.converted(x, np.uint8) if x.dtype.kind == "b" else x
        more, fewer = own.itemsize // x.dtype.itemsize, x.dtype.itemsize // own.itemsize
        x = xp.reshaped(x, (*x.shape[:-1], x.shape[-1] // more, more)) if more > 1 else x
        shape = x.shape[:-1] if more > 1 else (*x.shape, fewer) if fewer > 1 else x.shape
        x = xp.emit("bitcast_convert", (x,), (own, shape))
        return xp.converted(xp.reshaped(x, (*shape[:-2], shape[-2] * shape[-1])) if fewer > 1 else x, dtype)


class HloArray:
    """An array. xp: the array module. part: of the cell's memory. mask: None, or which rows of all that it holds it
    has, if their number is only known in a run: elementwise functions and assignments take it."""

    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]  # NumPy's arrays have none

    def __init__(self, xp: Any, cell: Any, part: np.ndarray | None = None, mask: HloArray | None = None) -> None:
        self.xp, self.cell = xp, cell if isinstance(cell, Cell) else Cell(cell)
        self.part = self.cell.memory if part is None else part
        self.mask, self.dtype, self.shape = mask, self.cell.content.dtype, self.part.shape
        self.ndim, self.size, self.itemsize = self.part.ndim, self.part.size, self.dtype.itemsize
        self.strides, self.nbytes = self.part.strides, self.size * self.itemsize

    # The content

    @property
    def content(self) -> Content:
        """The current content."""
        if self.mask is not None:
            raise NotWritten("the number of elements depends on values that only a run knows")
        return self.every

    @property
    def every(self) -> Content:
        """The content of all rows."""
        if self.part is self.cell.memory:
            return self.cell.content
        xp, found = self.xp, self._find()
        if found is None:
            places = np.full(self.shape, self._offset(), np.int64)
            for d, (n, step) in enumerate(zip(self.shape, self.strides, strict=True)):
                places += (np.arange(n) * step).reshape([-1 if e == d else 1 for e in range(self.ndim)])
            return xp.gathered(xp.reshaped(self.cell.content, (self.cell.memory.size,)), places[..., None], [0], 0)
        dims, spans, turned, order, own = found
        content = xp.reversed(xp.sliced(xp.reshaped(self.cell.content, dims), spans), turned)
        return xp.repeated(xp.reshaped(xp.transposed(content, order), own), self.shape)

    def store(self, content: Content) -> None:
        """Replace the elements in the cell."""
        xp, found = self.xp, self._find() if self.size else None
        if not self.size or self.part is self.cell.memory:
            self.cell.content = content
        elif found is None or found[4] != self.shape:
            raise NotWritten("it writes to elements that are repeated")
        else:
            dims, spans, turned, order, _ = found
            part = xp.reshaped(content, [len(spans[d]) for d in order])
            part = xp.reversed(xp.transposed(part, np.argsort(order).tolist()), turned)
            whole = xp.written(xp.reshaped(self.cell.content, dims), part, spans)
            self.cell.content = xp.reshaped(whole, self.cell.memory.shape)

    def _offset(self) -> int:
        return self.part.__array_interface__["data"][0] - self.cell.memory.__array_interface__["data"][0]

    def _find(self) -> tuple[Any, ...] | None:
        """Return how the array is a part of the cell: the dimensions in which the cell is seen, positions along each,
        the reversed dimensions, their order, and the shape without repetitions. Return None if it is no rectangle."""
        whole, steps = self.cell.memory.shape, [abs(s) * (n > 1) for n, s in zip(self.shape, self.strides, strict=True)]
        own = [*accumulate((1, *whole[:0:-1]), operator.mul)]
        both = {1, *(max(cut for cut in own if step % cut == 0) for step in steps if step)}, {1, *steps} - {0}
        return next(filter(None, (self._found(divided(self.cell.memory.size, cuts), steps) for cuts in both)), None)

    def _found(self, dims: tuple[int, ...] | None, steps: list[int]) -> tuple[Any, ...] | None:
        if dims is None:
            return None
        behind = [math.prod(dims[d + 1 :]) for d in range(len(dims))]
        lowest = self._offset() + sum((n - 1) * min(0, s) for n, s in zip(self.shape, self.strides, strict=True))
        spans = [range(first, first + 1) for first in (lowest // b % n for b, n in zip(behind, dims, strict=True))]
        order, turned = list[int](), list[int]()
        for n, step, given in zip(self.shape, steps, self.strides, strict=True):
            if not step:
                continue
            d = next((d for d, b in enumerate(behind) if b <= step), -1)
            by = step // behind[d]
            last = spans[d].start + by * (n - 1)
            if d < 0 or step % behind[d] or d in order or last >= dims[d]:
                return None
            spans[d] = range(spans[d].start, last + 1, by)
            order.append(d)
            turned += [d] if given < 0 else []
        order += [d for d in range(len(dims)) if d not in order]
        return dims, spans, turned, order, tuple(n if s else 1 for n, s in zip(self.shape, steps, strict=True))

    @property
    def known(self) -> np.ndarray:
        """The elements, if the writer knows them. Raise NotWritten if a run computes them."""
        if not isinstance(self.content, np.ndarray):
            raise NotWritten("its form depends on values that only a run knows")
        return self.content

    # NumPy's interface

    T = property(lambda self: self.transpose())
    real = property(lambda self: self._complex_part("real"), lambda self, x: self._set_complex(x, self.imag))
    imag = property(lambda self: self._complex_part("imag"), lambda self, x: self._set_complex(self.real, x))

    def _complex_part(self, name: str) -> HloArray:
        if self.dtype.kind != "c":
            return self if name == "real" else self.xp.zeros_like(self)
        return self.made(self.xp.emit(name, [self.content], (f"f{self.itemsize // 2}", self.shape)))

    def _set_complex(self, real: Any, imag: Any) -> None:
        self.store(self.xp.complex_of(real, imag))

    def made(self, content: Content) -> HloArray:
        """Return a new array."""
        return HloArray(self.xp, content)

    def seen(self, function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Return the result of a function of NumPy that makes views, or an array in another shape."""
        found = function(self.part, *(x.known if isinstance(x, HloArray) else x for x in args), **named)
        parts = [HloArray(self.xp, self.cell, each) if np.may_share_memory(each, self.cell.memory) and self.size else (
            self.made(self.xp.reshaped(self.content, each.shape))) for each in (
                found if isinstance(found, list) else [found])]  # fmt: skip
        return parts if isinstance(found, list) else parts[0]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _METHODS:
            raise NotWritten(f"numpy.ndarray.{name} has no form")
        function = getattr(np.ndarray, name, None) if name in VIEWS else None
        if function is not None:
            return lambda *args, **named: self.seen(function, *args, **named)
        return lambda *args, **named: getattr(self.xp, name)(self, *args, **named)

    def __array_ufunc__(self, ufunc: Any, method: str, *args: Any, **named: Any) -> Any:
        function = getattr(self.xp, ufunc.__name__)
        named |= {"out": named["out"][0]} if "out" in named else {}
        return (function if method == "__call__" else getattr(function, method))(*args, **named)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        return getattr(self.xp, function.__name__)(*args, **named)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.known, dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __index__(self) -> int:
        return int(self.known)

    __bool__, __int__, __float__ = (lambda self, to=to: to(self.known) for to in (bool, int, float))

    def astype(self, dtype: Any, copy: bool = True) -> HloArray:
        return self.made(self.xp.converted(self.content, dtype))

    def copy(self) -> HloArray:
        return self.made(self.content)

    def view(self, dtype: Any) -> HloArray:
        """Return a view of the same bits as elements of another type, whose number differs along the last dimension."""
        return HloArray(self.xp, _Bits(self, np.dtype(dtype)))

    # Indices

    def __getitem__(self, key: Any) -> HloArray:
        if _is_mask(key):
            flat = [array.reshape(key.size, *array.shape[key.ndim :]) for array in (self, key)]
            return HloArray(self.xp, flat[0].content, mask=flat[1])
        key, mask = self._whole(key)
        if all(isinstance(k, slice | int | None) for k in key):
            return HloArray(self.xp, self.cell, self.part[(*key, ...)])
        sliced, dims, indices, at = self._places(key)
        return HloArray(self.xp, self.xp.gathered(sliced.content, indices, dims, at), mask=mask)

    def __setitem__(self, key: Any, value: Any) -> None:
        if _is_mask(key) and getattr(value, "mask", None) is None:
            mask = key.reshape(*key.shape, *(1,) * (self.ndim - key.ndim))
            value, key = self.xp.where(mask, value, self), ...
        self.put(key, value, "")

    def put(self, key: Any, value: Any, combine: Combine) -> None:
        """Combine the elements at places with a value, as often as these occur; see `Combine`."""
        xp, (key, _) = self.xp, self._whole(key)
        value = self.xp.asarray(value)

        def taken(shape: Any) -> Content:
            content = xp.reshaped(value.every, value.shape[max(0, value.ndim - len(shape)) :])
            return xp.repeated(xp.converted(content, self.dtype), shape)

        if all(isinstance(k, slice | int | None) for k in key):
            part = HloArray(self.xp, self.cell, self.part[(*key, ...)])
            found = taken(part.shape)
            part.store(xp.emit(combine, (part.content, found), (self.dtype, part.shape)) if combine else found)
            return
        sliced, dims, indices, at = self._places(key)
        rest = [n for d, n in enumerate(sliced.shape) if d not in dims]
        updates = taken((*rest[:at], *indices.shape[:-1], *rest[at:]))
        sliced.store(xp.scattered(sliced.content, indices, updates, dims, at, combine))

    def _whole(self, key: Any) -> tuple[tuple[Any, ...], HloArray | None]:
        """Return a key with an entry for every dimension, integers, slices, None or arrays of integers, and the mask of
        the arrays, if they have one."""
        entries: list[Any] = []
        for k in key if isinstance(key, tuple) else (key,):
            if k is None or k is Ellipsis or isinstance(k, slice | int | np.integer):
                entries.append(int(k) if isinstance(k, np.integer) else k)
            else:
                array = self.xp.asarray(k)
                entries += map(self.xp.asarray, array.known.nonzero()) if array.dtype.kind == "b" else [array]
        place = next((i for i, k in enumerate(entries) if k is Ellipsis), len(entries))
        used = sum(k is not None and k is not Ellipsis for k in entries)
        entries[place : place + 1] = [slice(None)] * (self.ndim - used)
        return tuple(entries), next((k.mask for k in entries if isinstance(k, HloArray) and k.mask is not None), None)

    def _places(self, key: tuple[Any, ...]) -> tuple[HloArray, list[int], Content, int]:
        """Return the array with the slices of a key taken, the dimensions that its indices are of, the indices
        [..., dimensions], and the dimension of the result at which theirs come."""
        if any(k is None for k in key):
            raise NotWritten("it indexes new dimensions together with arrays")
        sliced = HloArray(self.xp, self.cell, self.part[tuple(k if isinstance(k, slice) else slice(None) for k in key)])
        dims = [d for d, k in enumerate(key) if not isinstance(k, slice)]
        shape, columns = np.broadcast_shapes(*(np.shape(key[d]) for d in dims)), list[Content]()
        for d in dims:
            given = self.xp.asarray(key[d])
            place = self.made(given.every)
            place = self.xp.where(place < 0, place + self.shape[d], place) if place.dtype.kind == "i" else place
            if given.mask is not None:
                place = self.xp.where(given.mask, place, self.shape[d])  # a scatter leaves these out
            whole = self.xp.broadcast_to(place.astype(np.int64), shape)
            columns.append(whole.reshape(*shape, 1).content)
        together = dims == list(range(dims[0], dims[0] + len(dims)))
        return sliced, dims, self.xp.joined(columns, len(shape)), dims[0] if together else 0


def _is_mask(key: Any) -> bool:
    """Whether an index is a mask that only a run knows."""
    return isinstance(key, HloArray) and key.dtype.kind == "b" and isinstance(key.content, Ref)


def _operator(name: str, way: str) -> Callable[..., Any]:
    def apply(self: HloArray, *other: Any) -> Any:
        out = {"out": self} if way == "i" else {}
        return getattr(self.xp, name)(*((*other, self) if way == "r" else (self, *other)), **out)

    return apply


for _name, _function in _OPERATORS.items():
    for _way in ("", "r", "i"):
        setattr(HloArray, f"__{_way}{_name}__", _operator(_function, _way))
