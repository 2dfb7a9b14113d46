"""A script defines operators as classes, which say shapes and element types of what comes out of them. To scripts this
is `ops.primitive`."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from mspc.api.ops.compile_time import constexpr as constexpr
from mspc.api.ops.compile_time import primexpr as _primexpr  # noqa: F401  # for scripts
from mspc.api.ops.custom import Custom
from mspc.api.ops.eager import PrimitiveTypeError, caller
from mspc.api.ops.primitive import Primitive
from mspc.ir.diagnostics import ExecutionError
from mspc.ops.control.custom import Custom as CustomOp
from mspc.ops.control.custom import ScriptFunction


class PrimitiveWithInfer(Custom):
    """A script's own operator whose kernel is of another program: a class that says with `infer_shape` and
    `infer_dtype` what comes out, of the arguments' shapes and element types. Networks with it compile, and it is
    sharded as `Custom` is; a run ends with an error, as mspc has no kernel for it. `get_bprop`, where there is one,
    returns its
    gradient: a function of the arguments, the result and its gradient, read as a network is.

    Raises:
        TypeError: an object is made of a class that lacks one of the two.
    """

    def __new__(cls, *_: Any, **__: Any) -> PrimitiveWithInfer:
        if not (hasattr(cls, "infer_shape") and hasattr(cls, "infer_dtype")):
            _refuse_own(cls)
        made = super().__new__(cls)
        made.func = _OfAnotherProgram(cls.__name__)
        made.op = CustomOp(called=ScriptFunction.of(cls.__name__, made.func))
        made._start()
        return made

    def __init__(self, name: str = "") -> None:
        """name: taken as in MindSpore; an operator is called as its class."""

    @property
    def out_shape(self) -> Any:
        return self.infer_shape

    @property
    def out_dtype(self) -> Any:
        return self.infer_dtype

    @functools.cached_property
    def own_gradient(self) -> Any:
        found = getattr(self, "get_bprop", None)
        return None if found is None else found()


class PrimitiveWithCheck(PrimitiveWithInfer):
    """The same of operators whose arguments the script checks."""


class _OfAnotherProgram:
    """Stands for the kernel of an operator that has none here."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def __call__(self, *_: Any) -> Any:
        raise ExecutionError(
            f"{self.__qualname__} is an operator of the script's own that says what comes out, not how it is computed: "
            "it compiles and does not run",
            notes=["give ops.Custom a function on arrays, or write it as a Cell over ops"],
        )


def _refuse_own(cls: type[Primitive]) -> None:
    """Raise TypeError for an operator of the script's own that does not say what comes out of it."""
    message = f"{cls.__name__} is an operator of the script's own without infer_shape and infer_dtype"
    notes = ["define both in a PrimitiveWithInfer, or write it as a function or a Cell over ops"]
    raise PrimitiveTypeError(message, caller(), notes)


def prim_attr_register(fn: Any) -> Any:
    """The decorator of an operator's `__init__`, whose arguments become attributes of the object.

    Raises:
        TypeError: an object is made of an operator of the script's own that does not say what comes out of it.
    """
    signature = inspect.signature(fn)

    @functools.wraps(fn)
    def registering(self: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, Primitive) and type(self).op_class is None and not isinstance(self, PrimitiveWithInfer):
            _refuse_own(type(self))
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        vars(self).update(list(bound.arguments.items())[1:])
        fn(self, *args, **kwargs)

    return registering
