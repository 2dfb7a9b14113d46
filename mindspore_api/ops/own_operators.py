"""Operators that a script defines as classes or functions. Scripts import this as `ops.primitive`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mspc.ir.types import DType, TensorType
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.eager import run_eagerly
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.mindspore_api.setting_kind import say_once
from mspc.ops.control.custom import TENSOR, ScriptFunction
from mspc.ops.control.custom import Custom as CustomOp
from mspc.ops.operator_arguments import describe


class Constexpr:
    """A function of values known at compile time; a compiled function calls it and continues with its result."""

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = name or self.__name__
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def constexpr(
    fn: Any = None, get_instance: bool = True, name: Any = None, reuse_result: bool = True, check: bool = True
) -> Any:
    """Mark a function to be called at compile time, as `@constexpr` or `@constexpr(...)`.

    get_instance: False returns a maker of the function. name: its name in messages. reuse_result, check: change
    nothing: the function is called each time, and tensors of a graph are always refused.

    Raises TypeError if `fn` is no function, or `name` no string.
    """
    if name is not None and not isinstance(name, str):
        raise ApiTypeError(f"constexpr: name must be a string, not {describe(name)}")
    if fn is None:
        return functools.partial(constexpr, get_instance=get_instance, name=name)
    if not callable(fn):
        raise ApiTypeError(f"constexpr takes a function, not {describe(fn)}")
    made = Constexpr(fn, name)
    return made if get_instance else lambda: made


primexpr = constexpr


_KINDS = ("hybrid", "akg", "tbe", "aicpu", "aot", "pyfunc")


class Custom(Primitive):
    """Calls `func` with NumPy arrays, at every step; it returns an array, or a tuple of arrays.

    func: takes the operator's arguments: an array for every tensor, tuples and numbers unchanged.
    out_shape, out_dtype: shapes and element types of its result, or functions that compute them from the arguments'
    shapes and element types.
    func_type: "pyfunc"; the others of MindSpore compile a kernel for one device, and are refused.
    bprop: takes the arguments, the result and its gradient, and returns the arguments' gradients; it is read like a
    network.
    reg_info: accepted and ignored: it describes kernels of other kinds.

    With `shard` a strategy lists the dimensions along which `func` may be given slices: in_strategy those of the
    tensors, out_strategy, of Layouts, those of the results; without it results are sharded like the first tensor of
    their shape. Each rank then calls `func` with its slices. Without a strategy every rank calls it with whole tensors.
    Raise TypeError if func or bprop is no function; ValueError if there is no such func_type, or it is not "pyfunc".
    """

    def __init__(
        self, func: Any, out_shape: Any = None, out_dtype: Any = None, func_type: str = "pyfunc", bprop: Any = None,
        reg_info: Any = None,
    ) -> None:  # fmt: skip
        if func_type not in _KINDS:
            raise ApiValueError(f"Custom: func_type {func_type!r} is not one of {', '.join(map(repr, _KINDS))}")
        if func_type != "pyfunc":
            raise ApiValueError(
                f"Custom: func_type {func_type!r} compiles a kernel for one device, which is not built",
                ['func_type="pyfunc" takes a function on arrays of NumPy'],
            )
        for name, value in (("func", func), ("bprop", bprop)):
            if not callable(value) and (value is not None or name == "func"):
                raise ApiTypeError(f"Custom: {name} must be a function, not {describe(value)}")
        self.func: Callable[..., Any] = func
        self.out_shape, self.out_dtype, self.own_gradient = out_shape, out_dtype, bprop
        self.op = CustomOp(called=ScriptFunction.of(getattr(func, "__name__", "function"), func))
        self._start()
        if reg_info is not None:
            say_once("Custom reg_info", "Custom: reg_info changes nothing here: it describes kernels of other devices")

    def function_on(self, args: Any, type_of: Callable[[Any], TensorType | None]) -> tuple[CustomOp, list[Any]]:
        """Return (the operator for these arguments, its operands); `type_of` returns the type of a tensor, None for
        other values. Raise TypeError if out_shape or out_dtype is no valid shape or element type."""
        operands: list[Any] = []

        def placed(value: Any) -> Any:
            if isinstance(value, tuple | list):
                return tuple(placed(each) for each in value)
            if type_of(value) is None:
                return value
            operands.append(value)
            return TENSOR

        def told(value: Any, what: Callable[[TensorType], Any], other: Any) -> Any:
            if isinstance(value, tuple | list):
                return tuple(told(each, what, other) for each in value)
            found = type_of(value)
            return other if found is None else what(found)

        given = tuple(placed(arg) for arg in args)
        shapes = self.out_shape
        if callable(shapes) and not isinstance(shapes, DType):
            shapes = shapes(*(told(arg, lambda t: t.shape, ()) for arg in args))
        dtypes = self.out_dtype
        if callable(dtypes) and not isinstance(dtypes, DType):
            dtypes = dtypes(*(told(arg, lambda t: t.dtype, None) for arg in args))
        several, results = self._results(shapes, dtypes)
        op = CustomOp(self.op.called, given, results, several)
        return op, operands

    def _results(self, shapes: Any, dtypes: Any) -> tuple[bool, tuple[TensorType, ...]]:
        if not isinstance(shapes, tuple | list):
            raise ApiTypeError(f"Custom: out_shape must be a tuple, a list or a function, not {describe(shapes)}")
        several = bool(shapes) and all(isinstance(shape, tuple | list) for shape in shapes)
        rows = [tuple(shape) for shape in (shapes if several else [shapes])]
        kinds = list(dtypes) if several and isinstance(dtypes, tuple | list) else [dtypes] * len(rows)
        for row in rows:
            if any(isinstance(size, bool) or not isinstance(size, int) or size < 0 for size in row):
                raise ApiTypeError(f"Custom: out_shape says {row}, which is no shape")
        if len(kinds) != len(rows) or not all(isinstance(kind, DType) for kind in kinds):
            raise ApiTypeError(
                f"Custom: out_dtype must be an element type for each of {len(rows)} results, or a function, not "
                f"{describe(dtypes)}"
            )
        return several, tuple(TensorType(kind, row) for kind, row in zip(kinds, rows, strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run now, on Tensors and numbers."""
        self.applied(args, kwargs)
        op, operands = self.function_on(args, lambda value: getattr(value, "type", None))
        return run_eagerly(op, tuple(operands))


class HookBackward:
    """The inputs, with gradients that `hook_fn(gradients)` may replace: it takes a tuple, and returns a tuple, a
    tensor, or None to change nothing. Called as `HookBackward(hook_fn)(*inputs)`; hook_fn is read like a network.

    cell_id: accepted for MindSpore's scripts, changes nothing.

    Raises TypeError if hook_fn is no function.
    """

    def __init__(self, hook_fn: Any, cell_id: str = "") -> None:
        if not callable(hook_fn):
            raise ApiTypeError(f"HookBackward: hook_fn must be a function, not {describe(hook_fn)}")
        self.hook_fn: Callable[..., Any] = hook_fn

    def __call__(self, *inputs: Any) -> Any:
        return inputs[0] if len(inputs) == 1 else inputs


def _get_cache_prim(cls: type[Any]) -> type[Any]:
    return cls


_primexpr = primexpr
