"""State of a cell: attributes, flags, declared inputs and precision."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

from mspc.ir.graph import OFFLOAD, OFFLOAD_INSIDE
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, DType, TensorType
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.api import CellGraphExecutor
from mspc.mindspore_api.common.gradient import positional
from mspc.mindspore_api.common.parameter import Parameter, changes, require_distinct_names
from mspc.mindspore_api.common.tensor import Symbol, Tensor
from mspc.mindspore_api.errors import ApiAttributeError, ApiKeyError, ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.mindspore_api.placement import note_place
from mspc.mindspore_api.setting_kind import checked
from mspc.mindspore_api.settings import OFFLOADED_CELLS
from mspc.ops.operator_arguments import describe
from mspc.ops.tensor.reshape import Cast

__all__: list[str] = []

Hook = Callable[..., Any]
_PRECISIONS = {"fp16": FLOAT16, "bf16": BFLOAT16, "fp32": FLOAT32}


class IncompatibleKeys(NamedTuple):
    """Names that `load_state_dict` did not find, and names that the cell does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def checked_flags(flags: Any) -> dict[str, Any]:
    """Return the flags given to a cell's constructor. Raise TypeError if they are no dict."""
    if flags is not None and not isinstance(flags, dict):
        raise ApiTypeError(f"Cell: flags must be a dict, not {describe(flags)}")
    return dict(flags or {})


class HookHandle:
    """Handle of a cell's hook; `remove` removes the hook."""

    def __init__(self, cell: CellState, kind: str, hook: Any, prepend: bool = False) -> None:
        function = hook[0] if isinstance(hook, tuple) else hook
        if not callable(function):
            raise ApiTypeError(f"{type(cell).__name__}: a hook must be a function, not {describe(function)}")
        self._cell, self._hooks = cell, cell._held(kind)
        before = dict(self._hooks) if prepend else {}
        if prepend:
            self._hooks.clear()
        self._hooks[self] = hook
        self._hooks.update(before)
        cell.revision += 1

    def remove(self) -> None:
        """Remove the hook. Another call changes nothing."""
        self._hooks.pop(self, None)
        self._cell.revision += 1


class CellState:
    """Buffers, states and hooks of a cell."""

    revision = 0
    """Number of changes of buffers and hooks; a change invalidates graphs that were read before."""

    @cached_property
    def cast(self) -> Primitive:
        """The operator Cast, which cells of older MindSpore have as an attribute."""
        return Primitive.of(Cast())

    def offload(self, backward_prefetch: Any = "Auto") -> None:
        """Store results of this cell and of the cells inside it in host memory until gradients read them. A cell's own
        setting wins.

        Args:
            backward_prefetch: number of operators before its first reader at which a value is fetched, and minimum
                number of operators after its producer at which device memory is freed; "Auto": enough that by the rates
                of an H200 no operator waits for a copy.

        Raises ValueError or TypeError if it is neither "Auto" nor an integer from 1 on.
        """
        found = checked("Cell.offload", OFFLOADED_CELLS, {"backward_prefetch": backward_prefetch}, "Cell.offload()")
        for _, inside in cast(Any, self).cells_and_names():
            inside.put_flags({OFFLOAD if inside is self else OFFLOAD_INSIDE: found["backward_prefetch"]})

    def place(self, role: str, rank_id: int) -> None:
        """Check a process for all operators of the cell; a warning says that it changes nothing. Raise TypeError or
        ValueError for invalid arguments."""
        note_place("Cell.place", role, rank_id)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the cell for these arguments, as a call with them would, without running it: the network is accepted
        or refused. `mspc compile` shows it like the first call of a script. Raise TypeError if the arguments are not
        those of `construct`; MspcError if the network is refused."""
        given = positional(cast(Any, self).construct, args, kwargs)
        if call_handler.shows_types_only():
            call_handler.current().call(self, given)
        else:
            CellGraphExecutor().compile(self, *given)

    def _held(self, kind: str) -> dict[Any, Any]:
        return self.__dict__.setdefault(kind, {})

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__.get("_buffers", ()):
            if value is not None and (not isinstance(value, Tensor) or isinstance(value, Parameter)):
                raise ApiTypeError(f"{type(self).__name__}.{name} is a buffer: a Tensor or None, not {describe(value)}")
            self.__dict__["revision"] = self.revision + 1
        object.__setattr__(self, name, value)

    def put_flags(self, flags: Mapping[str, Any]) -> None:
        """Store flags. A flag is also an attribute if there is none of that name; `fp16`, `bf16` and `fp32` are
        `to_float`."""
        changes.count += 1
        own = cast(Any, self).get_flags()
        before = own.get("to_float")
        for name, value in flags.items():
            if name not in _PRECISIONS:
                own[name] = value
            elif value:
                own["to_float"] = _PRECISIONS[name]
            elif own.get("to_float") == _PRECISIONS[name]:
                del own["to_float"]
            if name in self.__dict__.get("_flagged", ()) or not hasattr(self, name):
                self.__dict__.setdefault("_flagged", set()).add(name)
                self.__dict__[name] = value
        if own.get("to_float") != before:
            self.revision += 1

    def distinguish_parameters(self) -> None:
        """If two parameters have one name, rename all parameters to their attribute paths, as MindSpore does at the
        first call. An element of a tuple that another cell owns keeps its name, with the path of the tuple as prefix.

        Raise ValueError if two parameters still have one name.
        """
        cell = cast(Any, self)
        names = [parameter.name for parameter in cell.get_parameters()]
        if len(set(names)) == len(names):
            return
        found: dict[int, tuple[str, Parameter]] = {}
        for path, one in cell._paths():
            for key, parameter in one._params.items():
                given = parameter.given_name if key in one._owned else parameter.name
                name = (given or key) if "." in key else key
                found.setdefault(id(parameter), (f"{path}{name}", parameter))
        for name, parameter in found.values():
            parameter.name = name
        require_distinct_names(cell.parameters_and_places())

    # Buffers --------------------------------------------------------------------------------------

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a tensor that is no parameter as the attribute `name`. A `persistent` one is in `state_dict`. Raise
        TypeError if the name is no string or the tensor no Tensor; KeyError if the name is empty, has a dot, or is that
        of another attribute."""
        label = f"{type(self).__name__}.register_buffer()"
        if not isinstance(name, str):
            raise ApiTypeError(f"{label}: name must be a string, not {describe(name)}")
        if not name or "." in name:
            raise ApiKeyError(f"{label}: name must be neither empty nor have a dot, and is {name!r}")
        buffers = self._held("_buffers")
        if name not in buffers and hasattr(self, name):
            raise ApiKeyError(f"{label}: there is an attribute {name!r}")
        if tensor is not None and (not isinstance(tensor, Tensor) or isinstance(tensor, Parameter)):
            raise ApiTypeError(f"{label}: tensor must be a Tensor or None, not {describe(tensor)}")
        buffers[name] = persistent
        self.__setattr__(name, tensor)

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (attribute path, buffer) of this cell and, with `recurse`, of all below; each buffer once unless
        remove_duplicate is False."""
        seen: set[int] = set()
        cell = cast(Any, self)
        for path, one in cell.cells_and_names(name_prefix=prefix) if recurse else [(prefix, cell)]:
            for name in one._held("_buffers"):
                buffer = getattr(one, name)
                if buffer is not None and not (remove_duplicate and id(buffer) in seen):
                    seen.add(id(buffer))
                    yield f"{path}.{name}" if path else name, buffer

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Yield the buffers of this cell and, with `recurse`, of all below."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def get_sub_cell(self, target: str) -> Any:
        """Return the cell at an attribute path; this one for "". Raise AttributeError if there is none."""
        cell: Any = self
        for name in target.split(".") if target else ():
            below = cell.name_cells().get(name)
            if below is None:
                raise ApiAttributeError(f"{type(cell).__name__} has no cell {name!r}")
            cell = below
        return cell

    # All by name ----------------------------------------------------------------------------------

    def state_dict(
        self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False
    ) -> OrderedDict[str, Any]:
        """Return parameters and persistent buffers of this cell and all below, by attribute path after `prefix`: the
        tensors themselves, whatever keep_vars is. destination: a dict to add them to. Raise TypeError for positional
        arguments, which MindSpore no longer has."""
        if args:
            raise ApiTypeError("state_dict() takes destination, prefix and keep_vars by name")
        found = OrderedDict[str, Any]() if destination is None else destination
        cell = cast(Any, self)
        found.update({f"{prefix}{name}": parameter for name, parameter in cell._params.items()})
        for name, persistent in self._held("_buffers").items():
            if persistent and getattr(self, name) is not None:
                found[f"{prefix}{name}"] = getattr(self, name)
        for name, below in cell.name_cells().items():
            below.state_dict(destination=found, prefix=f"{prefix}{name}.", keep_vars=keep_vars)
        return found

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Load parameters and buffers by name.

        Returns:
            the missing names, and the names that the cell does not have.

        Raises:
            TypeError: it is no mapping. RuntimeError: shapes differ; with `strict` also for missing or unknown names.
                The message lists all of them, and nothing is loaded.
        """
        if not isinstance(state_dict, Mapping):
            raise ApiTypeError(f"load_state_dict(): state_dict must be a dict, not {describe(state_dict)}")
        own = self.state_dict()
        keys = IncompatibleKeys([n for n in own if n not in state_dict], [n for n in state_dict if n not in own])
        wrong = [f"{n}: {tuple(value.shape)} for {tuple(own[n].shape)}" for n, value in state_dict.items()
                 if n in own and tuple(value.shape) != tuple(own[n].shape)]  # fmt: skip
        said = [("missing", keys.missing_keys if strict else []), ("unknown", keys.unexpected_keys if strict else []),
                ("shapes differ", wrong)]  # fmt: skip
        if any(names for _, names in said):
            parts = "; ".join(f"{what}: {', '.join(names)}" for what, names in said if names)
            raise ApiRuntimeError(f"{type(self).__name__}.load_state_dict(): {parts}")
        for name, value in state_dict.items():
            if name in own:
                self._take(name, own[name], value)
        return keys

    def _take(self, name: str, held: Any, value: Any) -> None:
        tensor = value if isinstance(value, Tensor) else Tensor(value)
        if isinstance(held, Parameter):
            held.set_data(tensor.astype(held.dtype))
            return
        path, _, attribute = name.rpartition(".")
        self.get_sub_cell(path).__setattr__(attribute, Tensor(tensor.asnumpy(), held.dtype))

    # Hooks ----------------------------------------------------------------------------------------

    def hooks(self, place: str) -> list[tuple[Hook, bool]]:
        """Return (hook, whether it takes named arguments) for the hooks at `place`, before or after `construct`."""
        return list(self.__dict__.get(f"_{place}_construct", {}).values())

    def backward_hooks(self) -> tuple[list[Hook], list[Hook]]:
        """Return the hooks of `register_backward_pre_hook`, and those of `register_backward_hook`."""
        held = (self.__dict__.get(f"_{place}_backward", {}).values() for place in ("before", "behind"))
        before, behind = ([hook for hook, _ in each] for each in held)
        return before, behind

    def register_forward_pre_hook(
        self, hook_fn: Hook, *, prepend: bool = False, with_kwargs: bool = False
    ) -> HookHandle:
        """Run `hook_fn(cell, inputs)` in networks before `construct`; its result, unless None, replaces the inputs,
        which are a tuple. With with_kwargs it is `hook_fn(cell, inputs, named)`, and returns both. prepend: run it
        before the existing hooks. It is compiled as `construct` is."""
        return HookHandle(self, "_before_construct", (hook_fn, with_kwargs), prepend)

    def register_forward_hook(
        self, hook_fn: Hook, *, prepend: bool = False, with_kwargs: bool = False, always_call: bool = False
    ) -> HookHandle:
        """Run `hook_fn(cell, inputs, output)` in networks after `construct`; its result, unless None, replaces the
        output. With with_kwargs it is `hook_fn(cell, inputs, named, output)`. always_call changes nothing: a graph
        raises no errors. prepend: run it before the existing hooks. It is compiled as `construct` is."""
        return HookHandle(self, "_behind_construct", (hook_fn, with_kwargs), prepend)

    def register_backward_pre_hook(self, hook_fn: Hook) -> HookHandle:
        """Register `hook_fn(cell, grad_output)`, which becomes part of the backward graph. grad_output is the tuple of
        the gradients of the cell's outputs, before the cell is differentiated. It may return a tuple or a tensor to
        replace them, or None. It is compiled as `construct` is: `print` prints at every step, and values must not be
        read (`asnumpy`). A cell that defines `bprop` ignores backward hooks, as in MindSpore."""
        return HookHandle(self, "_before_backward", (hook_fn, False))

    def register_backward_hook(self, hook_fn: Hook) -> HookHandle:
        """Register `hook_fn(cell, grad_input, grad_output)`, which becomes part of the backward graph. grad_input and
        grad_output are tuples: the gradients of the tensors among the positional inputs of `construct` (None for a
        tensor without gradient) and among the outputs. It may return a tuple or a tensor to replace grad_input, or
        None. It is compiled as `construct` is, and runs if a gradient of one of the inputs is computed. A cell that
        defines `bprop` ignores backward hooks, as in MindSpore."""
        return HookHandle(self, "_behind_backward", (hook_fn, False))


def declared(construct: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs by parameter name of `construct`. Raise TypeError if they do not match its parameters."""
    try:
        return dict(inspect.signature(construct).bind_partial(*inputs, **named).arguments)
    except TypeError as error:
        raise ApiTypeError(f"Cell.set_inputs: construct(): {error}") from None


def check(name: str, construct: Callable[..., Any], said: Mapping[str, Any], args: Sequence[Any]) -> None:
    """Check that the tensors of a call to the cell `name` are as declared. Raise TypeError for a wrong element type,
    ValueError for a wrong shape."""
    sizes: dict[int, int] = {}
    for label, wanted, found in _pairs(construct, said, args):
        _check_one(f"{name}: input {label!r}", wanted, found, sizes)


def is_open(arg: Any) -> bool:
    """Return whether an argument is a tensor of unknown sizes, or holds one."""
    if isinstance(arg, tuple | list):
        return any(map(is_open, arg))
    return isinstance(arg, Tensor) and arg.declared is not None


def _pairs(
    construct: Callable[..., Any], said: Mapping[str, Any], args: Sequence[Any]
) -> Iterator[tuple[str, Tensor, Any]]:
    """Yield (name, declaring tensor, actual tensor) of the arguments that are tensors in both."""
    signature = inspect.signature(construct)
    given = signature.bind_partial(*args).arguments
    for input_name in signature.parameters:
        wanted, found = said.get(input_name), given.get(input_name)
        if isinstance(wanted, Tensor) and _is_tensor(found):
            yield input_name, wanted, found
        elif isinstance(wanted, tuple) and isinstance(found, tuple):
            for i, (one, other) in enumerate(zip(wanted, found, strict=False)):
                if isinstance(one, Tensor) and _is_tensor(other):
                    yield f"{input_name}[{i}]", one, other


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor | TensorType)


def _check_one(what: str, wanted: Tensor, found: Any, sizes: dict[int, int]) -> None:
    if wanted.dtype != found.dtype:
        raise ApiTypeError(f"{what} has element type {found.dtype}, but set_inputs declared {wanted.dtype}")
    allowed = wanted.shape if wanted.declared is None else wanted.declared
    if len(allowed) != len(found.shape):
        raise ApiValueError(
            f"{what} has shape {found.shape}, but set_inputs declared {len(allowed)} dimensions: {_shown(allowed)}"
        )
    for place, (rule, size) in enumerate(zip(allowed, found.shape, strict=True)):
        reason = _reason(rule, size, sizes)
        if reason:
            raise ApiValueError(
                f"{what} has shape {found.shape}, but set_inputs declared {_shown(allowed)}: dimension {place} must be "
                f"{reason}, not {size}"
            )


def _reason(rule: Any, size: int, sizes: dict[int, int]) -> str:
    if not isinstance(rule, Symbol):
        return "" if rule in (None, -1, size) else str(rule)
    least, most = rule.min, rule.max if rule.max > rule.min else None
    if size < least or (most is not None and size > most):
        return f"from {least} to {most}" if most is not None else f"at least {least}"
    if size % rule.divisor != rule.remainder:
        return f"a multiple of {rule.divisor}" + f" and {rule.remainder} more" * bool(rule.remainder)
    if rule.unique and sizes.setdefault(id(rule), size) != size:
        return f"{sizes[id(rule)]}, as at the other uses of the symbol"
    return ""


def _shown(allowed: Sequence[Any]) -> str:
    return "(" + ", ".join("?" if rule in (None, -1) else str(rule) for rule in allowed) + ",)"[len(allowed) > 1 :]


@dataclass(frozen=True)
class Precision:
    """Element types of operators by operator name.

    dtype: the type to which floating-point operands of the operators `narrow` are cast. wide: operators that compute in
    Float32. widens: results of `narrow` are cast back to Float32 at once.
    """

    dtype: DType
    narrow: frozenset[str] = frozenset()
    wide: frozenset[str] = frozenset()
    widens: bool = False
