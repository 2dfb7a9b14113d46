"""`Cell`: the building block of networks. It collects its attributes; its `construct` is parsed, never run."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mspc.ir.diagnostics import Location, MspcError
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType, dtype_of
from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.checks import integer
from mspc.mindspore_api.common.api import JitConfig
from mspc.mindspore_api.common.gradient import launched
from mspc.mindspore_api.common.parameter import (
    UNNAMED,
    Parameter,
    changes,
    checked_plan,
    repeated_name,
    require_distinct_names,
)
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import PYNATIVE_MODE, get_context, is_graph_mode
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError, caller_location
from mspc.mindspore_api.nn.cell_state import CellState, check, checked_flags, declared
from mspc.mindspore_api.ops.checked import checked_constructor
from mspc.mindspore_api.ops.primitive import Primitive, check_strategy
from mspc.mindspore_api.placement import note_shard_options
from mspc.mindspore_api.setting_kind import checked, note_asked, place_of_caller, say_once
from mspc.mindspore_api.settings import RECOMPUTE, SET_GRAD, STAGE
from mspc.ops.operator_arguments import describe

if TYPE_CHECKING:
    from typing import Protocol, TypedDict, TypeVar, Unpack

    _Result = TypeVar("_Result", covariant=True)

    class _Computes(Protocol[_Result]):
        """A cell whose calls return what its `construct` does, for type checkers."""

        def construct(self, *args: Any, **kwargs: Any) -> _Result: ...

    class RecomputeOptions(TypedDict, total=False):
        """Keywords of `Cell.recompute`, described in `settings.RECOMPUTE`."""

        mp_comm_recompute: bool
        parallel_optimizer_comm_recompute: bool
        recompute_slice_activation: bool
        output_recompute: bool
        use_reentrant: bool


_CONVERSIONS = frozenset("Tensor from_numpy tensor".split())


class Cell(CellState):
    """Part of a network: parameters, operators and further cells as attributes, and `construct`, its computation.

    Calling a cell in a script compiles and runs it; inside another cell's `construct` it becomes part of that graph.

    Args:
        auto_prefix: rename parameters of cells below to their attribute paths.
    """

    takes_data: ClassVar[bool] = True
    """Whether the tensor arguments of a script are data, with different rows on each rank. Those of an optimizer are
    gradients, which are replicated. Set with the class: `class Optimizer(Cell, takes_data=False)`."""

    parameter_layout_dict: Mapping[str, Any] = MappingProxyType({})
    """Layouts of the parameters from the last compile by `_cell_graph_executor`; empty before."""

    def __init_subclass__(cls, takes_data: bool | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if takes_data is not None:
            cls.takes_data = takes_data
        if cls.__module__.startswith("mspc.mindspore_api.") and (
            "__init__" in cls.__dict__ or cls.__init__ is Cell.__init__
        ):
            cls.__init__ = checked_constructor(cls.__name__, cls.__init__)

    def __init__(self, auto_prefix: Any = True, flags: dict[str, Any] | None = None) -> None:
        put = object.__setattr__
        put(self, "_cells", OrderedDict[str, Cell]())
        put(self, "_params", OrderedDict[str, Parameter]())
        put(self, "_members", set[str]())
        put(self, "_owned", set[str]())
        put(self, "_auto_prefix", auto_prefix)
        put(self, "_flags", checked_flags(flags))
        put(self, "training", False)
        put(self, "requires_grad", False)
        put(self, "in_strategy", None)
        put(self, "out_strategy", None)
        put(self, "parameter_plan", ())
        put(self, "_declared_inputs", dict[str, Any]())

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the result of the cell; subclasses define it in the part of Python that mspc compiles."""
        raise ApiRuntimeError(f"{type(self).__name__} defines no construct()")

    def __call__(self: _Computes[_Result], *args: Any, **kwargs: Any) -> _Result:
        """Compile (once) and run `construct` on tensors."""
        target: Any = self
        if any(isinstance(arg, np.ndarray) for arg in (*args, *kwargs.values())):
            self._refuse_arrays((*args, *kwargs.values()))
        if kwargs:
            target, args = launched(self, self.construct, args, kwargs)
        if self._declared_inputs:
            check(type(self).__name__, self.construct, self._declared_inputs, args)
        return call_handler.current().call(target, args)

    def _refuse_arrays(self, args: Iterable[Any]) -> None:
        """Raise TypeError for NumPy arrays, as MindSpore's cells and operators do. In PyNative mode a script's cell may
        convert them, or use them without further cells."""
        names = getattr(getattr(self.construct, "__code__", None), "co_names", ())
        converts = not _CONVERSIONS.isdisjoint(names) or not self._cells
        if converts and not is_graph_mode() and not type(self).__module__.startswith("mspc."):
            return
        shape = next(arg.shape for arg in args if isinstance(arg, np.ndarray))
        message = f"{type(self).__name__}: an argument is a NumPy array of shape {shape}, not a Tensor"
        raise ApiTypeError(message, ["pass mindspore.Tensor(x)"])

    # Attributes -----------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        changes.count += 1
        members = self.__dict__.get("_members", ())
        if name in members and self._assigned(name, value):
            return
        if isinstance(value, (Parameter, Cell, Primitive, list, tuple)) or name in members:
            self._register(name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        changes.count += 1
        self._forget(name)
        object.__delattr__(self, name)

    def _assigned(self, name: str, value: Any) -> bool:
        """Assign the values of a tensor to the parameter called `name`; return whether there is one and `value` is a
        tensor. As in MindSpore, it stays the same Parameter: trained, saved, and shared with its other owners.

        Raises TypeError for other values, except None, a cell, an operator or a sequence, which replace the parameter.
        """
        parameter = self._params.get(name)
        if parameter is None or value is None or isinstance(value, (Parameter, Cell, Primitive, list, tuple)):
            return False
        if not isinstance(value, Tensor):
            raise ApiTypeError(
                f"{type(self).__name__}.{name} is a parameter: it takes a Tensor or a Parameter, not {describe(value)}",
                [f"set its values by {name} = Tensor(...), or remove it by {name} = None"],
            )
        parameter.set_data(value)
        return True

    def _register(self, name: str, value: Any) -> None:
        if "_cells" not in self.__dict__:
            if not isinstance(value, (Parameter, Cell)):
                return
            raise ApiRuntimeError(
                f"{type(self).__name__}: call super().__init__() before setting attribute {name!r}", code="E1005"
            )
        stays = (name in self._params and isinstance(value, Parameter)) or (
            name in self._cells and isinstance(value, Cell))  # fmt: skip
        if name in self._members and not stays:  # a replacement of the same kind keeps the position
            self._forget(name)
        if isinstance(value, Parameter):
            self._insert(name, value)
        elif isinstance(value, Cell):
            self._adopt(name, value)
        elif isinstance(value, Primitive):
            value.instance_name = "" if value.is_shared else name
        elif isinstance(value, (list, tuple)):
            place = f"{type(self).__name__}.{name}"
            parameters = ((f"{place}[{i}]", item) for i, item in enumerate(value) if isinstance(item, Parameter))
            require_distinct_names(parameters)
            for i, item in enumerate(value):
                if isinstance(item, Parameter):
                    self._members.add(name)
                    self._insert(f"{name}.{i}", item, own=not item.owned)
                elif isinstance(item, Cell):
                    self._members.add(name)
                    self._adopt(f"{name}.{i}", item)

    def _insert(self, name: str, parameter: Parameter, own: bool = True) -> None:
        if parameter.name == UNNAMED:
            parameter.name = name
        changes.count += 1
        self._params[name] = parameter
        self._members.add(name)
        if own:
            parameter.owned = True
            parameter.holder = f"{type(self).__name__}.{name}"
            self._owned.add(name)

    def _forget(self, name: str) -> None:
        prefix = f"{name}."
        self._members.discard(name)
        for members in (self._params, self._cells):
            for key in [k for k in members if k == name or k.startswith(prefix)]:
                del members[key]
                self._owned.discard(key)

    def insert_param_to_cell(self, param_name: str, param: Parameter, check_name_contain_dot: bool = True) -> None:
        """Add a parameter as an attribute. Raise TypeError if `param` is no Parameter; ValueError if the name is empty
        or contains a dot."""
        if not isinstance(param, Parameter):
            raise ApiTypeError(f"insert_param_to_cell takes a Parameter, not {type(param).__name__}")
        if not param_name or (check_name_contain_dot and "." in param_name):
            raise ApiValueError(f"{param_name!r} cannot name a parameter")
        self._insert(param_name, param)
        object.__setattr__(self, param_name, param)

    def insert_child_to_cell(self, child_name: str, child_cell: Cell) -> None:
        """Add a cell as an attribute. Raise TypeError if `child_cell` is no Cell; ValueError if the name is taken,
        empty or contains a dot."""
        if not isinstance(child_cell, Cell):
            raise ApiTypeError(f"insert_child_to_cell takes a Cell, not {type(child_cell).__name__}")
        if not child_name or "." in child_name or child_name in self._cells:
            raise ApiValueError(f"{child_name!r} cannot name a child: it is taken, empty or contains a dot")
        self._adopt(child_name, child_cell)
        object.__setattr__(self, child_name, child_cell)

    def _adopt(self, name: str, cell: Cell) -> None:
        if "_cells" not in cell.__dict__:
            raise ApiRuntimeError(f"{type(cell).__name__} does not call super().__init__()")
        changes.count += 1
        self._cells[name] = cell
        self._members.add(name)
        if self._auto_prefix:
            cell.update_parameters_name(f"{name}.")

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Rename the parameters that the cells here own to their attribute paths, with `prefix` before them. A
        parameter in a tuple, without an attribute, keeps its given name after the path. A cell with two owners takes
        the path of the second one."""
        cells = self._paths() if recurse else [("", self)]
        named: set[int] = set()
        for path, cell in cells:
            for key, parameter in cell._params.items():
                if key in cell._owned and id(parameter) not in named:
                    named.add(id(parameter))
                    parameter.name = f"{prefix}{path}{('.' in key and parameter.given_name) or key}"

    def _paths(self, path: str = "") -> Iterator[tuple[str, Cell]]:
        left = [(path, self)]
        while left:  # no recursion: a script may nest cells deeper than Python's stack
            path, cell = left.pop()
            yield path, cell
            left += [(f"{path}{name}.", below) for name, below in reversed(cell._cells.items())]

    # Looking around -------------------------------------------------------------------------------

    def name_cells(self) -> OrderedDict[str, Cell]:
        """Return the cells directly below, by attribute."""
        return OrderedDict(self._cells)

    def cells(self) -> Any:
        """Return the cells directly below."""
        return self._cells.values()

    def cells_and_names(self, cells: Any = None, name_prefix: str = "") -> Iterator[tuple[str, Cell]]:
        """Yield (attribute path, cell) for this cell and all below, each cell once."""
        seen = cells if cells is not None else set()
        left = [(name_prefix, self)]
        while left:
            path, cell = left.pop()
            if id(cell) in seen:
                continue
            seen.add(id(cell))
            yield path, cell
            left += [(f"{path}.{name}" if path else name, below) for name, below in reversed(cell._cells.items())]

    def parameters_and_names(self, name_prefix: str = "", expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Yield (attribute path, parameter) of this cell and, with `expand`, all below; each parameter once."""
        seen: set[int] = set()
        cells = self.cells_and_names(name_prefix=name_prefix) if expand else [(name_prefix, self)]
        for path, cell in cells:
            for name, parameter in cell._params.items():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{path}.{name}" if path else name, parameter

    def parameters_and_places(self, expand: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Return pairs (class of this cell and attribute path, parameter), for messages."""
        return self.parameters_and_names(type(self).__name__, expand)

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Yield all parameters, each once."""
        for _, parameter in self.parameters_and_names(expand=expand):
            yield parameter

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """Return the parameters that training changes."""
        return [p for p in self.get_parameters(recurse) if p.requires_grad]

    def untrainable_params(self, recurse: bool = True) -> list[Parameter]:
        """Return the parameters that training does not change."""
        return [p for p in self.get_parameters(recurse) if not p.requires_grad]

    def parameters_dict(self, recurse: bool = True) -> OrderedDict[str, Parameter]:
        """Return parameters by full name; of several with one name the last one, with a warning."""
        repeated = repeated_name(self.parameters_and_places(recurse))
        if repeated:
            text = f"{place_of_caller()}parameters_dict() lacks a parameter: {repeated}"
            say_once(f"parameters_dict {repeated}", text)
        return OrderedDict((p.name, p) for p in self.get_parameters(recurse))

    def parameters_broadcast_dict(self, recurse: bool = True) -> OrderedDict[str, Parameter]:
        return OrderedDict((p.name, p) for p in self.get_parameters(recurse) if not p.layerwise_parallel)

    def apply(self, fn: Any) -> Cell:
        """Call `fn` on every cell, those below first."""
        found: list[Cell] = []
        left: list[Cell] = [self]
        while left:
            found.append(left.pop())
            left += found[-1]._cells.values()
        for cell in reversed(found):
            fn(cell)
        return self

    @property
    def pipeline_stage(self) -> int | None:
        """The stage of a pipeline that the script has given the cell, None before."""
        return self.__dict__.get("_stage")

    @pipeline_stage.setter
    def pipeline_stage(self, stage: int) -> None:
        """Set the stage; a launch of one stage warns that it changes nothing. Raise TypeError for no integer,
        ValueError below 0."""
        found = checked("Cell.pipeline_stage", STAGE, {"pipeline_stage": stage})
        note_asked(state.current().asked, "", STAGE, found, f"Cell.pipeline_stage = {stage}")
        object.__setattr__(self, "_stage", stage)
        object.__setattr__(self, "_stage_place", caller_location())

    @property
    def pipeline_stage_place(self) -> Location | None:
        """The line that set the stage of the cell."""
        return self.__dict__.get("_stage_place")

    @property
    def cls_name(self) -> str:
        return type(self).__name__

    @property
    def auto_prefix(self) -> bool:
        return self._auto_prefix

    # Settings -------------------------------------------------------------------------------------

    def set_train(self, mode: bool = True) -> Cell:
        """Set training or evaluation mode, for this cell and all below: it switches Dropout."""
        if not isinstance(mode, bool):
            raise ApiTypeError(f"set_train takes True or False, not {mode!r}")
        changes.count += 1
        for _, cell in self.cells_and_names():
            object.__setattr__(cell, "training", mode)
        return self

    def set_grad(self, requires_grad: bool = True) -> Cell:
        """Warn that it changes nothing: the cell that trains decides which parameters are differentiated.

        Raises TypeError if `requires_grad` is no bool.
        """
        checked("Cell.set_grad", SET_GRAD, {"requires_grad": requires_grad})
        object.__setattr__(self, "requires_grad", requires_grad)
        return self

    def shard(
        self, in_strategy: Any, out_strategy: Any = None, parameter_plan: Any = None, device: str = "", level: int = 0
    ) -> Cell:
        """Set the sharding of the inputs of this cell and return the cell; `parameter_plan` maps names of parameters
        (or paths to them, as "self.dense.weight") to strategies.

        Raises TypeError or ValueError if it is no strategy of this cell's tensors.
        """
        label = f"{type(self).__name__}.shard"
        self.in_strategy = check_strategy(in_strategy, f"{label}: in_strategy")
        self.out_strategy = check_strategy(out_strategy, f"{label}: out_strategy")
        self.parameter_plan = checked_plan(self, parameter_plan, label)
        note_shard_options(label, device, level)
        return self

    def set_data_parallel(self) -> None:
        """Shard the cells inside that have no strategy along the batch in automatic mode, as semi-automatic mode does.

        Raises ValueError in PyNative mode.
        """
        if get_context("mode") == PYNATIVE_MODE:
            raise ApiValueError("set_data_parallel needs graph mode", ["call set_context(mode=GRAPH_MODE) before"])
        self.add_flags_recursive(strategy_gen_mode="data_parallel")

    def recompute(self, **options: Unpack[RecomputeOptions]) -> Cell:
        """Recompute the cells inside in the backward part instead of saving their results. mp_comm_recompute=False
        saves the results of communication; with parallel_optimizer_comm_recompute=True parameters with shared updates
        are gathered again. Other options change nothing, as a warning says.

        Raises ValueError or TypeError if there is no such option or value.
        """
        found = checked("Cell.recompute", RECOMPUTE, options)
        return self.add_flags_recursive(recompute=True, **({"recompute_options": found} if found else {}))

    def to_float(self, dst_type: DType) -> Cell:
        """Compute in another element type: floating-point inputs of this cell and of all below, their parameters and
        their constant tensors are cast to it for operators. Parameters keep their own type. Raise ValueError if it is
        none of float16, bfloat16, float32."""
        try:
            dtype = dtype_of(dst_type)
        except (MspcError, TypeError):
            raise ApiValueError(f"to_float: {dst_type!r} is no element type") from None
        if dtype not in (FLOAT16, BFLOAT16, FLOAT32):
            raise ApiValueError(f"to_float: {dtype} is none of Float16, BFloat16, Float32")
        return self.add_flags_recursive(to_float=dtype)

    def add_flags(self, **flags: Any) -> Cell:
        self.put_flags(flags)
        return self

    def add_flags_recursive(self, **flags: Any) -> Cell:
        for _, cell in self.cells_and_names():
            cell.put_flags(flags)
        return self

    def get_flags(self) -> dict[str, Any]:
        return self._flags

    def set_comm_fusion(self, fusion_type: int, recurse: bool = True) -> Cell:
        """Reduce gradients of the cells inside together with those of the same number; with 0, each separately. Raise
        TypeError or ValueError if `fusion_type` is no integer from 0."""
        integer(0)("Cell.set_comm_fusion: fusion_type", fusion_type)
        for parameter in self.trainable_params(recurse):
            parameter.comm_fusion = fusion_type
        return self

    def set_jit_config(self, jit_config: JitConfig) -> None:
        """Check the options; a network is one compiled graph in any case. Raise TypeError if it is no JitConfig."""
        if not isinstance(jit_config, JitConfig):
            raise ApiTypeError(f"set_jit_config takes a JitConfig, not {type(jit_config).__name__}")

    def _get_attr_from_cell(self, network: Any) -> None:
        """Do nothing: accepted for cells of scripts that wrap others and copy MindSpore's attributes."""

    def set_inputs(self, *inputs: Any, **kwargs: Any) -> None:
        """Declare inputs by position or name: calls with tensors of another element type or shape are refused.

        A tensor of unknown sizes, `Tensor(shape=[None, 16], dtype=...)`, declares only the known ones. Every shape is
        compiled separately; numbers and None declare nothing.

        Raises TypeError if `construct` has no such input.
        """
        object.__setattr__(self, "_declared_inputs", declared(self.construct, inputs, kwargs))

    def get_inputs(self) -> tuple[Any, ...]:
        """Return the inputs declared by `set_inputs`, in the order of `construct`."""
        return tuple(self._declared_inputs.values())

    def init_parameters_data(self, auto_parallel_mode: bool = False) -> dict[Parameter, Parameter]:
        """Return every parameter mapped to itself: initial values are sampled when they are needed."""
        return {parameter: parameter for parameter in self.get_parameters()}

    def extend_repr(self) -> str:
        """Return the text of `repr` in addition to the cells below."""
        return ""

    def __repr__(self) -> str:
        own = self.extend_repr()
        below = [f"  ({name}): {cell!r}".replace("\n", "\n  ") for name, cell in self._cells.items()]
        if not below:
            return f"{type(self).__name__}({own})"
        return "\n".join([f"{type(self).__name__}({own}", *below, ")"])
