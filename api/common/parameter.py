"""A `Parameter` is a tensor with a name that training changes. While a graph trains it, its values live in the
runtime."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

from mspc.api import state
from mspc.api.checks import integer
from mspc.api.common.initial_values import InitialValue, as_initializer, initial_value
from mspc.api.common.tensor import STORED, Tensor, as_array
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.setting_kind import checked, note_asked
from mspc.api.settings import STAGE
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.operator_arguments import describe

UNNAMED = "Parameter"
"""The name of a parameter until a cell's attribute gives it one."""

FACTS = ("_requires_grad", "_layerwise_parallel", "_parallel_optimizer", "_comm_fusion")
"""Entries of a Parameter's dict that a compile looks at, beside its name, shape and element type."""


class _Compiling(threading.local):
    """Whether this thread is reading a network, for which the values of parameters are not known."""

    network = False


_compiling = _Compiling()


@contextmanager
def without_values() -> Generator[None]:
    """Refuse to read the values of any Parameter in this thread. A compile reads a network in this context: a value
    that became a constant of the graph would never change again, although every step may change the parameter."""
    outer, _compiling.network = _compiling.network, True
    try:
        yield
    finally:
        _compiling.network = outer


def _require_values(parameter: Parameter) -> None:
    if _compiling.network:
        raise MspcError(
            f"the value of parameter '{parameter.name}' is not known at compile time, because every step may change it",
            notes=["compute with the parameter as with any tensor; a value that never changes may be a Python number"],
            kind=ValueError,
        )


class Changes:
    """Counts how often attributes of cells and parameters were set. While the count stays the same, none was, so a call
    of a compiled network need not compare them."""

    count = 0


changes = Changes()


class GradientHook:
    """A hook on the gradient of a parameter, which `remove` takes away."""

    def __init__(self, parameter: Parameter, hook: Any) -> None:
        self._parameter, self._hook = parameter, hook
        parameter.gradient_hooks = (*parameter.gradient_hooks, hook)
        changes.count += 1

    def remove(self) -> None:
        """Take the hook away. Calling it again changes nothing."""
        hooks = list(self._parameter.gradient_hooks)
        if self._hook is not None and self._hook in hooks:
            hooks.remove(self._hook)
        self._hook, self._parameter.gradient_hooks = None, tuple(hooks)
        changes.count += 1


class Store(Protocol):
    """Where the values of parameters are while a graph trains them."""

    def read(self, parameter: Parameter) -> np.ndarray:
        """The full tensor; a sharded one is gathered, so every rank must read it."""
        ...

    def write(self, parameter: Parameter, array: np.ndarray) -> None:
        """Replace the full tensor."""
        ...

    def draw(self, parameter: Parameter, initial: InitialValue) -> None:
        """Replace it by what an initializer makes."""
        ...

    def part(self, parameter: Parameter) -> tuple[Layout | None, np.ndarray]:
        """How the tensor is sharded (None: not at all), and this rank's slice of it."""
        ...


def _attribute(name: str, kind: type, wanted: str) -> Any:
    """An attribute of parameters that scripts may set. Raises TypeError for a value of another type."""
    place = f"_{name}"

    def put(parameter: Parameter, value: Any) -> None:
        if not isinstance(value, kind):
            raise ApiTypeError(f"Parameter.{name} must be {wanted}, not {describe(value)}")
        changes.count += 1
        vars(parameter)[place] = value

    return property(attrgetter(place), put)


class Parameter(Tensor):
    """A tensor that belongs to a network.

    Args:
        default_input: Tensor, array, number or list; values of an `initializer` are sampled when they
            are needed.
        name: None takes the name of the attribute that holds the parameter.
        requires_grad: whether training changes it.
        layerwise_parallel: left out of the gradient reduction of data parallel modes.
        parallel_optimizer: may be sharded over replicas by the parallel optimizer.

    The full name of a parameter is the path of attributes of the cells that hold it, then its own
    name. `owned`: a cell holds it already, so that an optimizer's list of it does not rename it.
    """

    is_followed = False
    gradient_hooks: tuple[Any, ...] = ()
    """Functions that gradients of the parameter pass through."""

    name = _attribute("name", str, "a string")
    requires_grad = _attribute("requires_grad", bool, "True or False")
    layerwise_parallel = _attribute("layerwise_parallel", bool, "True or False")
    parallel_optimizer = _attribute("parallel_optimizer", bool, "True or False")

    def __init__(
        self,
        default_input: Any,
        name: str | None = None,
        requires_grad: bool = True,
        layerwise_parallel: bool = False,
        parallel_optimizer: bool = True,
        storage_format: str = "",
        device: Any = None,
    ) -> None:
        if name is not None and not isinstance(name, str):
            raise ApiTypeError(f"Parameter.name must be a string, not {describe(name)}")
        if name is not None and not name.strip():
            raise ApiValueError("the name of a parameter must not be empty")
        super().__init__(default_input)
        if self._array is not None and not _is_fresh(default_input):
            self._array = np.array(self._array)
        made = self._array if self._lazy is None else self._lazy
        assert made is not None
        self._type = TensorType(dtype_of(made.dtype), tuple(made.shape))
        self.placement = STORED
        self.store: Store | None = None
        self.given_name = name
        self.name = UNNAMED if name is None else name
        self.requires_grad = requires_grad
        self.layerwise_parallel = layerwise_parallel
        self.parallel_optimizer = parallel_optimizer
        self.comm_fusion = 1
        self.on_host: int | None = None
        """How many updates ahead of its own it is fetched where it lives in the host's memory, 0 where that is left to
        the compiler; None where it lives on the device. `Optimizer.offload` sets it."""
        self.laid_out: Layout | None = None
        """How a compile that ran nothing has sharded it: slices of a rank's own checkpoint are known by that."""
        self.owned = False
        self.holder = ""
        """The class of the cell that owns the parameter and its attribute, for messages."""

    def register_hook(self, hook: Any) -> GradientHook:
        """Register `hook(grad)`, which becomes part of graphs that compute the gradient of the parameter. It takes the
        whole gradient, and may return another one, or None to change nothing. It is compiled as `construct` is.

        Returns:
            a handle, whose `remove()` takes the hook away.

        Raises:
            TypeError: it is no function.
        """
        if not callable(hook):
            raise ApiTypeError(f"register_hook: hook must be a function, not {describe(hook)}")
        return GradientHook(self, hook)

    @property
    def message_label(self) -> str:
        """How error messages refer to the parameter."""
        return f"parameter '{self.name}'"

    @property
    def comm_fusion(self) -> int:
        """With which others its gradient travels: those of the same number; 0 for none. Raises TypeError or ValueError
        for what is no integer from 0."""
        return self._comm_fusion

    @comm_fusion.setter
    def comm_fusion(self, number: int) -> None:
        changes.count += 1
        self._comm_fusion = integer(0)("Parameter.comm_fusion", number)

    @property
    def array(self) -> np.ndarray:
        """The full tensor as it is now; gathered from all ranks while a graph trains it in slices. Raises MspcError
        while a network is compiled."""
        _require_values(self)
        if self.store is not None:
            return self.store.read(self)
        if self._array is None:
            self._array = self._sampled()
        return self._array

    @array.setter
    def array(self, array: np.ndarray) -> None:
        if self.store is not None:
            self.store.write(self, array)
            return
        self._array, self._lazy = array, None
        self._type = TensorType(dtype_of(array.dtype), array.shape)

    def value(self) -> Tensor:
        """Return the present values as a Tensor of their own: later training does not change it, and writing to it does
        not change the parameter."""
        return self.copy()

    @property
    def shape(self) -> tuple[int, ...]:
        return self._type.shape

    @property
    def dtype(self) -> Any:
        return self._type.dtype

    @property
    def initial(self) -> InitialValue | None:
        _require_values(self)
        return self._lazy if self.store is None else None

    def released(self, store: Store) -> None:
        """From now on `store` has the values: what this object holds of them is given back."""
        self.store = store
        self._array = self._lazy = None

    @property
    def is_here(self) -> bool:
        """Whether this rank holds some of the values, and not another stage's ranks alone."""
        return self.store is None or getattr(self.store, "holds", True)

    def part(self) -> tuple[Layout | None, np.ndarray]:
        """How the ranks hold the parameter now (None: replicated), and what this rank holds, which no other need ask
        for. The array is the one that further training changes."""
        _require_values(self)
        return (None, self.fill_slices()) if self.store is None else self.store.part(self)

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Say whether training changes the parameter, and return it."""
        self.requires_grad = requires_grad
        return self

    @property
    def data(self) -> Parameter:
        return self

    @property
    def param_info(self) -> Parameter:
        """What MindSpore notes of the parameter beside its values is the parameter itself. Set, it takes over the name
        and the marks of another one. Raises TypeError for what is none."""
        return self

    @param_info.setter
    def param_info(self, info: Any) -> None:
        if not isinstance(info, Parameter):
            raise ApiTypeError(f"Parameter.param_info must be that of a parameter, not {describe(info)}")
        self.name = self.given_name = info.name
        self.requires_grad, self.comm_fusion = info.requires_grad, info.comm_fusion
        self.layerwise_parallel, self.parallel_optimizer = info.layerwise_parallel, info.parallel_optimizer

    def set_data(self, data: Any, slice_shape: bool = False) -> Parameter:
        """Replace the values. Raises ValueError for another shape, TypeError for another kind of number."""
        if isinstance(data, InitialValue):
            data = Tensor(data)
        if self._take_over(data):
            return self
        array = as_array(data)
        if array.shape != self.shape:
            raise ApiValueError(
                f"parameter '{self.name}' has shape {self.shape}, the new values {array.shape}"
            )
        kind = dtype_of(array.dtype)
        if kind != self.dtype and kind.is_float and not self.dtype.is_float:
            raise ApiTypeError(f"parameter '{self.name}' is {self.dtype}, the new values are {kind}")
        self.array = array.astype(self.dtype.numpy, copy=not _is_fresh(data))
        return self

    def _take_over(self, data: Any) -> bool:
        """Have the values made as those of `data` are, where an initializer makes them; whether that was done."""
        lazy = data.initial if isinstance(data, Tensor) else None
        if lazy is None or lazy.shape != self.shape or (lazy.dtype.is_float and not self.dtype.is_float):
            return False
        cast = lazy.cast(self.dtype)
        if cast is None:
            return False
        if self.store is not None:
            self.store.draw(self, cast)
        else:
            self._array, self._lazy = None, cast
        return True

    def set_dtype(self, dtype: Any) -> Parameter:
        super().set_dtype(dtype)
        if self._lazy is not None:
            self._type = TensorType(self._lazy.dtype, self._lazy.shape)
        return self

    def add_pipeline_stage(self, stage: int) -> None:
        """Accepted: a parameter is where operators read it. Raises TypeError for no integer, ValueError below 0."""
        found = checked("Parameter.add_pipeline_stage", STAGE, {"pipeline_stage": stage})
        note_asked(state.current().asked, "", STAGE, found, f"add_pipeline_stage({stage})")

    def assign_value(self, other: Any) -> Parameter:
        return self.set_data(other)

    def init_data(self, *_: Any, **__: Any) -> Parameter:
        return self

    def clone(self, init: Any = "same") -> Parameter:
        """A new parameter of the same shape; `init` "same" copies the values, else it is an initializer."""
        if init == "same":
            source: Any = np.array(self.array) if self.initial is None else self.initial
        else:
            source = initial_value(init, self.shape, self.dtype)
        twin = Parameter(
            source, self.name, self.requires_grad, self.layerwise_parallel, self.parallel_optimizer
        )
        twin.comm_fusion, twin.on_host = self.comm_fusion, self.on_host
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """A parameter of its own under the same name, with the values of now; a store holds this one alone."""
        twin = memo[id(self)] = self.clone()
        twin.given_name, twin.owned, twin.holder = self.given_name, self.owned, self.holder
        return twin

    def __copy__(self) -> Parameter:
        return self.__deepcopy__({})

    @property
    def has_init(self) -> bool:
        return self.store is None and self._array is None and self._lazy is not None

    def _repr_html_(self) -> None:
        """No table in notebooks: values are sampled when they are needed."""

    def __repr__(self) -> str:
        described = f"name={self.name}, shape={self.shape}, dtype={self.dtype}"
        return f"Parameter({described}, requires_grad={self.requires_grad})"

    __str__ = __repr__


def repeated_name(parameters: Iterable[tuple[str, Parameter]]) -> str:
    """Return which two of these parameters have one name and where they are, or "". Each parameter comes with its
    place. Parameters without a name of their own are left out: a cell's attribute names them later."""
    known: dict[str, tuple[str, Parameter]] = {}
    for place, parameter in parameters:
        first, other = known.setdefault(parameter.name, (place, parameter))
        if other is not parameter and parameter.name != UNNAMED:
            return f"two parameters are called '{parameter.name}': {first} and {place}"
    return ""


def require_distinct_names(parameters: Iterable[tuple[str, Parameter]]) -> None:
    """Raise ValueError if two of these parameters have one name: a checkpoint would have only one of them."""
    repeated = repeated_name(parameters)
    if repeated:
        raise ApiValueError(repeated, ['give each Parameter its own name, for example Parameter(value, name="w1")'])


class ParameterTuple(tuple[Parameter, ...]):
    """Several parameters. Raises TypeError for an element that is none, ValueError for two of one name."""

    def __new__(cls, iterable: Iterable[Parameter]) -> ParameterTuple:
        found = tuple(iterable)
        for element in found:
            if not isinstance(element, Parameter):
                raise ApiTypeError(f"ParameterTuple takes Parameters, not {type(element).__name__}")
        require_distinct_names((element.holder or f"element {i}", element) for i, element in enumerate(found))
        return super().__new__(cls, found)

    def clone(self, prefix: str, init: Any = "same") -> ParameterTuple:
        """Copies named `prefix.name`, with their values or with those of an initializer."""
        twins: list[Parameter] = []
        init = init if isinstance(init, str) and init == "same" else as_initializer(init)
        for parameter in self:
            twin = parameter.clone(init)
            twin.name = twin.given_name = f"{prefix}.{parameter.name}"
            twins.append(twin)
        return ParameterTuple(twins)


def _is_fresh(data: Any) -> bool:
    """Whether nobody changes the array that is made of `data` in place: it was made now, or is of a tensor that has it
    for itself. (A tensor gets another array where it changes.)"""
    return not isinstance(data, Tensor) or (data.owned and not isinstance(data, Parameter))
