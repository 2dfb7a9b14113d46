"""`Parameter`: a named tensor that training changes. While a graph trains it, the runtime holds its values."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import Any, Protocol, cast

import numpy as np

from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.ir.initial_value import Description, Slices, clear_row
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.temporary import temporarily
from mspc.ir.types import DType, TensorType, dtype_of
from mspc.mindspore_api import state
from mspc.mindspore_api.checks import integer
from mspc.mindspore_api.common.initializers import InitialValue, as_initializer, initial_value
from mspc.mindspore_api.common.tensor import STORED, Tensor, as_array
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import checked, note_asked
from mspc.mindspore_api.settings import STAGE
from mspc.ops.operator_arguments import describe


class _LoadedValue(InitialValue):
    """Values that are stored, not described."""

    zero_row: int | None = None

    def description(self) -> Description | None:
        return None

    def cast(self, dtype: DType) -> InitialValue | None:
        return self if dtype == self.dtype else self._with(dtype=dtype)


class StoredValue(_LoadedValue):
    """Tensor of an open checkpoint, in place of an initializer.

    source: the checkpoint. key: the tensor's name in it.
    """

    in_parts = True

    def __init__(self, source: Checkpoint, key: str) -> None:
        self.source = source
        self.key = key
        self.shape = source.tensors[key].type.shape
        self.dtype = source.tensors[key].type.dtype

    def fill(self, slices: Slices | None = None) -> np.ndarray:
        """Return the values in `slices` (None: all), reading no other bytes. Raise MspcError if they cannot be read."""
        array = self.source.read(self.key, slices).astype(self.dtype.numpy, copy=False)
        clear_row(array, self.zero_row, self.shape, slices)
        return array


UNNAMED = "Parameter"
"""The name of a parameter until a cell's attribute gives it one."""

FACTS = ("_requires_grad", "_layerwise_parallel", "_parallel_optimizer", "_comm_fusion")
"""Entries of a Parameter's dict that a compile reads, in addition to its name, shape and element type."""


class _Compiling(threading.local):
    """Thread-local flag: this thread is reading a network, so that values of parameters are unknown."""

    network = False


_compiling = _Compiling()


def without_values() -> AbstractContextManager[None]:
    """Refuse to read the values of any Parameter in this thread. A compile reads a network in this context: a value
    that became a constant of the graph would never change again, although every step may change the parameter."""
    return temporarily(_compiling, network=True)


def _require_values(parameter: Parameter) -> None:
    if _compiling.network:
        raise MspcError(
            f"the value of parameter '{parameter.name}' is not known at compile time, because every step may change it",
            notes=["compute with the parameter as with any tensor; a value that never changes may be a Python number"],
            kind=ValueError, code="E0305",
        )


class Changes:
    """Counter of assignments to attributes of cells and parameters. If the count is unchanged, no attribute was set,
    and a call of a compiled network skips the comparison."""

    count = 0


changes = Changes()


class GradientHook:
    """Handle of a hook on the gradient of a parameter; `remove` removes the hook."""

    def __init__(self, parameter: Parameter, hook: Any) -> None:
        self._parameter, self._hook = parameter, hook
        parameter.gradient_hooks = (*parameter.gradient_hooks, hook)
        changes.count += 1

    def remove(self) -> None:
        """Remove the hook. Another call changes nothing."""
        hooks = list(self._parameter.gradient_hooks)
        if self._hook is not None and self._hook in hooks:
            hooks.remove(self._hook)
        self._hook, self._parameter.gradient_hooks = None, tuple(hooks)
        changes.count += 1


class Store(Protocol):
    """Holder of the values of parameters while a graph trains them."""

    def read(self, parameter: Parameter) -> np.ndarray:
        """Return the full tensor. A sharded one is gathered, so every rank must read it."""

    def write(self, parameter: Parameter, array: np.ndarray) -> None:
        """Replace the full tensor."""

    def draw(self, parameter: Parameter, initial: InitialValue) -> None:
        """Replace it by the values of an initializer."""

    def part(self, parameter: Parameter) -> tuple[Layout | None, np.ndarray]:
        """Return the layout of the tensor (None if it is not sharded) and this rank's slice."""


def _attribute(name: str, kind: type, wanted: str) -> Any:
    """Return a property of parameters that scripts may set. Its setter raises TypeError for a value of another type."""
    place = f"_{name}"

    def put(parameter: Parameter, value: Any) -> None:
        if not isinstance(value, kind):
            raise ApiTypeError(f"Parameter.{name} must be {wanted}, not {describe(value)}")
        changes.count += 1
        vars(parameter)[place] = value

    return property(attrgetter(place), put)


class Parameter(Tensor):
    """Tensor that belongs to a network.

    Args:
        default_input: Tensor, array, number or list; values of an `initializer` are sampled when they are needed.
        name: None takes the name of the attribute that holds the parameter.
        requires_grad: whether training changes it.
        layerwise_parallel: left out of the gradient reduction of data parallel modes.
        parallel_optimizer: may be sharded over replicas by the parallel optimizer.

    The full name of a parameter is the path of attributes of the cells that contain it, followed by its own name.
    `owned`: a cell contains it already, so that an optimizer's list of parameters does not rename it.
    """

    is_followed = False
    gradient_hooks: tuple[Any, ...] = ()
    """Functions that gradients of the parameter pass through."""

    name = _attribute("name", str, "a string")
    requires_grad = _attribute("requires_grad", bool, "True or False")
    layerwise_parallel = _attribute("layerwise_parallel", bool, "True or False")
    parallel_optimizer = _attribute("parallel_optimizer", bool, "True or False")

    def __init__(
        self, default_input: Any, name: str | None = None, requires_grad: bool = True,
        layerwise_parallel: bool = False, parallel_optimizer: bool = True, storage_format: str = "",
        device: Any = None,
    ) -> None:  # fmt: skip
        if name is not None and not isinstance(name, str):
            raise ApiTypeError(f"Parameter.name must be a string, not {describe(name)}")
        if name is not None and not name.strip():
            raise ApiValueError("the name of a parameter must not be empty")
        super().__init__(default_input)
        self._view = None
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
        """Number of updates before its own at which it is fetched from host memory, 0 if the compiler chooses it; None
        if it is stored on the device. `Optimizer.offload` sets it."""
        self.laid_out: Layout | None = None
        """Layout from a compile that ran nothing; it identifies slices of a rank's own checkpoint."""
        self.owned = False
        self.holder = ""
        """The class of the cell that owns the parameter and its attribute, for messages."""

    def register_hook(self, hook: Any) -> GradientHook:
        """Register `hook(grad)`, which becomes part of graphs that compute the gradient of the parameter. It takes the
        whole gradient, and may return another one, or None to change nothing. It is compiled as `construct` is.

        Returns:
            a handle; its `remove()` removes the hook.

        Raises TypeError if it is no function.
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
        """Number of its fusion group: gradients with the same number are reduced together; 0 for none. Setting it
        raises TypeError or ValueError if it is no integer from 0."""
        return self._comm_fusion

    @comm_fusion.setter
    def comm_fusion(self, number: int) -> None:
        changes.count += 1
        self._comm_fusion = integer(0)("Parameter.comm_fusion", number)

    @property
    def array(self) -> np.ndarray:
        """The current full tensor, gathered from all ranks while a graph trains it in slices. Raise MspcError while a
        network is compiled."""
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
        """Let `store` hold the values from now on, and free their memory in this object."""
        self.store = store
        self._array = self._lazy = None

    @property
    def is_here(self) -> bool:
        """Whether this rank has some of the values, or only the ranks of another stage do."""
        return self.store is None or getattr(self.store, "holds", True)

    def part(self) -> tuple[Layout | None, np.ndarray]:
        """Return the current layout of the parameter (None: replicated) and the part of this rank, without
        communication. Further training changes this array."""
        _require_values(self)
        return (None, self.fill_slices()) if self.store is None else self.store.part(self)

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Set whether training changes the parameter, and return it."""
        self.requires_grad = requires_grad
        return self

    @property
    def param_info(self) -> Parameter:
        """The parameter itself, which has MindSpore's notes of it as attributes. Setting it copies the name and the
        marks of another parameter. Raise TypeError if the value is none."""
        return self

    @param_info.setter
    def param_info(self, info: Any) -> None:
        if not isinstance(info, Parameter):
            raise ApiTypeError(f"Parameter.param_info must be that of a parameter, not {describe(info)}")
        self.name = self.given_name = info.name
        self.requires_grad, self.comm_fusion = info.requires_grad, info.comm_fusion
        self.layerwise_parallel, self.parallel_optimizer = info.layerwise_parallel, info.parallel_optimizer

    def set_data(self, data: Any, slice_shape: bool = False) -> Parameter:
        """Replace the values. Raise ValueError for another shape, TypeError for another kind of number."""
        if isinstance(data, InitialValue):
            data = Tensor(data)
        if self._take_over(data):
            return self
        array = as_array(data)
        if array.shape != self.shape:
            raise ApiValueError(f"parameter '{self.name}' has shape {self.shape}, the new values {array.shape}")
        kind = dtype_of(array.dtype)
        if kind != self.dtype and kind.is_float and not self.dtype.is_float:
            raise ApiTypeError(f"parameter '{self.name}' is {self.dtype}, the new values are {kind}")
        self.array = array.astype(self.dtype.numpy, copy=not _is_fresh(data))
        return self

    def _take_over(self, data: Any) -> bool:
        """Use the initializer of `data` without making values, if possible; return whether it is used."""
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
        """Check the stage; it changes nothing, because a parameter is placed with the operators that read it. Raise
        TypeError for no integer, ValueError below 0."""
        found = checked("Parameter.add_pipeline_stage", STAGE, {"pipeline_stage": stage})
        note_asked(state.current().asked, "", STAGE, found, f"add_pipeline_stage({stage})")

    def assign_value(self, other: Any) -> Parameter:
        return self.set_data(other)

    def init_data(self, *_: Any, **__: Any) -> Parameter:
        return self

    def clone(self, init: Any = "same") -> Parameter:
        """Return a new parameter of the same shape; `init` is "same" to copy the values, or an initializer."""
        if init == "same":
            source: Any = np.array(self.array) if self.initial is None else self.initial
        else:
            source = initial_value(init, self.shape, self.dtype)
        twin = Parameter(source, self.name, self.requires_grad, self.layerwise_parallel, self.parallel_optimizer)
        twin.comm_fusion, twin.on_host = self.comm_fusion, self.on_host
        return twin

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """Return a new parameter with the same name and the current values; the store keeps only this one."""
        twin = memo[id(self)] = self.clone()
        twin.given_name, twin.owned, twin.holder = self.given_name, self.owned, self.holder
        return twin

    def __copy__(self) -> Parameter:
        return self.__deepcopy__({})

    @property
    def has_init(self) -> bool:
        return self.store is None and self._array is None and self._lazy is not None

    def _repr_html_(self) -> None:
        """Return None, so that notebooks show no table: values are sampled when they are needed."""

    def __repr__(self) -> str:
        described = f"name={self.name}, shape={self.shape}, dtype={self.dtype}"
        return f"Parameter({described}, requires_grad={self.requires_grad})"

    __str__ = __repr__


def repeated_name(parameters: Iterable[tuple[str, Parameter]]) -> str:
    """Return a message with the first two parameters of one name and their places, or "". Each parameter comes with its
    place. Unnamed parameters are skipped: a cell's attribute names them later."""
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
    """Several parameters. Raise TypeError for an element that is no Parameter, ValueError for two of one name."""

    def __new__(cls, iterable: Iterable[Parameter]) -> ParameterTuple:
        found = tuple(iterable)
        for element in found:
            if not isinstance(element, Parameter):
                raise ApiTypeError(f"ParameterTuple takes Parameters, not {type(element).__name__}")
        require_distinct_names((element.holder or f"element {i}", element) for i, element in enumerate(found))
        return super().__new__(cls, found)

    def clone(self, prefix: str, init: Any = "same") -> ParameterTuple:
        """Return copies named `prefix.name`, with their values or with those of an initializer."""
        twins: list[Parameter] = []
        init = init if isinstance(init, str) and init == "same" else as_initializer(init)
        for parameter in self:
            twin = parameter.clone(init)
            twin.name = twin.given_name = f"{prefix}.{parameter.name}"
            twins.append(twin)
        return ParameterTuple(twins)


def _is_fresh(data: Any) -> bool:
    """Return whether the array made from `data` is never changed in place: it is new, or belongs to one tensor alone.
    (A tensor gets another array if it changes.)"""
    return not isinstance(data, Tensor) or (data.owned and not isinstance(data, Parameter))


Plan = tuple[tuple[Any, Any], ...]
"""(Parameter, strategy) in the order of the dict."""


def checked_plan(cell: Any, plan: Any, label: str) -> Plan:
    """Return the plan with the parameters themselves. Names are those of the parameters, or attribute paths with or
    without the prefix "self.". Raise TypeError unless the plan is a dict of tuples or Layouts; ValueError for a
    parameter that the cell does not have, or a strategy that does not fit its shape."""
    if plan is None:
        return ()
    if not isinstance(plan, Mapping):
        raise ApiTypeError(f"{label}: parameter_plan must be a dict, not {plan!r}")
    known: dict[str, Any] = {}
    for path, parameter in cell.parameters_and_names():
        known.setdefault(parameter.name, parameter)
        known[path] = parameter
    found: list[tuple[Any, Any]] = []
    for name, strategy in cast("Mapping[Any, Any]", plan).items():
        strategy = _checked_strategy(name, strategy, label)
        parameter = known.get(name.removeprefix("self."))
        if parameter is None:
            raise ApiValueError(
                f"{label}: parameter_plan names {name!r}, which is no parameter of {type(cell).__name__}",
                [f"its parameters are {', '.join(known)}" if known else "it has none"],
            )
        _check_fit(name, strategy, tuple(parameter.shape), label)
        found.append((parameter, strategy))
    return tuple(found)


def _checked_strategy(name: Any, strategy: Any, label: str) -> Any:
    """Return a tuple of ints or a Layout, which may be wrapped in a tuple."""
    if isinstance(strategy, tuple) and len(strategy) == 1 and isinstance(strategy[0], NamedLayout):
        strategy = strategy[0]
    cuts: Any = strategy.strategy if isinstance(strategy, NamedLayout) else strategy
    if not isinstance(name, str) or not isinstance(cuts, tuple) or not all(_is_shard_count(shards) for shards in cuts):
        raise ApiTypeError(
            f"{label}: parameter_plan maps names to tuples of integers or Layouts, not {name!r} to {strategy!r}",
            ['write {"self.weight": (2, 4)}'],
        )
    return strategy


def _is_shard_count(shards: Any) -> bool:
    return isinstance(shards, int) and not isinstance(shards, bool) and shards > 0


def _check_fit(name: str, strategy: Any, shape: tuple[int, ...], label: str) -> None:
    cuts: tuple[int, ...] = strategy.strategy if isinstance(strategy, NamedLayout) else strategy
    if len(cuts) != len(shape):
        raise ApiValueError(
            f"{label}: the strategy {cuts} of parameter {name!r} has {len(cuts)} entries for {len(shape)} dimensions",
            [f"its shape is {shape}"],
        )
    for dimension, (size, shards) in enumerate(zip(shape, cuts, strict=True)):
        if size % shards:
            raise ApiValueError(
                f"{label}: dimension {dimension} of parameter {name!r} is {size}, which {shards} does not divide",
                [f"its shape is {shape}, the strategy {cuts}"],
            )


def checked_layout(layout: Any) -> NamedLayout:
    """Return the layout of one tensor. Raise TypeError for anything else."""
    if not isinstance(layout, NamedLayout):
        raise ApiTypeError(
            f"reshard takes the layout of a tensor, not {layout!r}", ['write Layout((2, 4), ("dp", "mp"))("dp", "mp")']
        )
    return layout


class HeldSlice(_LoadedValue):
    """Tensor of `shape` with only this rank's part, given by `layout`, available."""

    def __init__(self, name: str, shape: tuple[int, ...], layout: Layout, rank: int, array: np.ndarray) -> None:
        self.name = name
        self.shape = shape
        self.dtype = dtype_of(array.dtype)
        self._places = layout.slices_for(rank, shape)
        self._array = array

    def fill(self, slices: Slices | None = None) -> np.ndarray:
        """Return the slice. Raise MspcError for any other slice."""
        if slices is None or [(s.start, s.stop) for s in slices] != [(s.start, s.stop) for s in self._places]:
            raise MspcError(
                f"parameter '{self.name}': only this rank's own slice was loaded",
                notes=[
                    "the global tensor is there when the network trains, sharded as when the checkpoint was written",
                    "load_distributed_checkpoint reads the files of all ranks for any strategy",
                ],
            )
        return self._array.astype(self.dtype.numpy)
