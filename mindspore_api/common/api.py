"""Functions and decorators of `mindspore.common.api`, by which a script requests compiled code."""

from __future__ import annotations

from typing import Any, TypeVar

from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import call_handler
from mspc.mindspore_api.common.gradient import jit
from mspc.mindspore_api.common.no_grad import _no_grad as _no_grad
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiKeyError, ApiTypeError
from mspc.mindspore_api.setting_kind import checked, place_of_caller, say_once
from mspc.mindspore_api.settings import JIT_CONFIG
from mspc.ops.operator_arguments import describe


class JitConfig:
    """Options of a compile, for `Cell.set_jit_config` and `jit`. They are checked but change nothing; a warning lists
    those with other values than the default. Raise ValueError for an unknown option or an impossible value; TypeError
    for a value of the wrong type."""

    def __init__(self, jit_level: str = "", exc_mode: str = "auto", jit_syntax_level: str = "", **options: Any) -> None:
        given = {"jit_level": jit_level, "exc_mode": exc_mode, "jit_syntax_level": jit_syntax_level, **options}
        self.jit_config_dict = checked("JitConfig", JIT_CONFIG, given)


Made = TypeVar("Made")


def _changes_nothing(name: str, why: str) -> None:
    say_once(name, f"{place_of_caller()}{name}() changes nothing here: {why}")


def no_inline(fn: Made = None) -> Made:
    """Return the function itself, as a decorator; a warning says that it changes nothing: a function called twice is
    read once, and computed for every call."""
    _changes_nothing("no_inline", "functions are always inlined, and equal calls are read once")
    return fn


def set_recursion_limit(recursion_limit: int = 1000) -> None:
    """Check the limit; a warning says that it changes nothing: calls may be nested as deep as Python's own. Raise
    TypeError for no integer."""
    _changes_nothing("set_recursion_limit", "calls may be nested as deep as Python's own, see sys.setrecursionlimit")


def set_dump(target: Any, enabled: bool = True) -> None:
    """Warn that it changes nothing, whatever target and enabled are."""
    _changes_nothing("set_dump", "`mspc verify` compares all values with one device")


def enable_dynamic(**kwargs: Any) -> Any:
    """Return a decorator that returns the function itself; a warning says that declared sizes change nothing, whatever
    kwargs are: a graph is compiled for every shape of a call."""
    _changes_nothing("enable_dynamic", "a function is compiled for every shape that it is called with")
    return lambda fn: fn


def prepare(block: Any, output_recompute: Any, context_fn: Any) -> None:
    """Mark a cell for recomputation of its values. Raise TypeError if it is no Cell."""
    if not hasattr(block, "recompute") or not hasattr(block, "get_flags"):
        raise ApiTypeError(f"recompute() takes a Cell, not {describe(block)}")
    if output_recompute or context_fn is not None:
        _changes_nothing("recompute(output_recompute, context_fn)", "the graph decides what is recomputed")
    if not block.get_flags().get("recompute"):
        block.recompute()


class Phase(str):
    """Name of one compile. facts: its results."""

    def __new__(cls, name: str, facts: Any) -> Phase:
        made = super().__new__(cls, name)
        made.facts = facts
        return made

    facts: Any


class CellGraphExecutor:
    """Compiles cells without running them: a network is accepted or refused, and only the strategy files that the
    script requests are written.

    Operators are named by their cells and their index among those of their kind: `Default/network-Net/MatMul-op0`.
    """

    @property
    def _graph_executor(self) -> CellGraphExecutor:
        return self

    def compile(self, obj: Any, *args: Any, phase: str = "predict", **options: Any) -> tuple[str, bool]:
        """Compile `obj(*args)` for all ranks in the current context, and set `obj.parameter_layout_dict`.

        Args:
            obj: a Cell or a function. args: its arguments as one rank passes them. phase: the first part of the
                returned name. options: MindSpore's further arguments (`do_convert`, `jit_config_dict`) change nothing
                here.

        Returns:
            The full name of the phase, which identifies the compile, and True.

        Raises TypeError if `phase` is no string or `obj` cannot be called; MspcError if the network is refused, with
        the kind of exception that running it would raise.
        """
        if not isinstance(phase, str):
            raise ApiTypeError(f"compile: phase must be a string, not {type(phase).__name__}")
        if not callable(obj):
            raise ApiTypeError(f"compile takes a Cell or a function, not {type(obj).__name__}")
        unknown = sorted(options.keys() - {"do_convert", "jit_config_dict"})
        if unknown:
            raise ApiTypeError(f"compile has no argument {unknown[0]!r}")
        facts = call_handler.backend().compile_in_memory(obj, args)
        if hasattr(obj, "__dict__"):  # not through its class: gradient functions are frozen
            vars(obj).update(parameter_layout_dict=facts.parameter_layouts, strategies_by_operator=facts.strategies)
        return Phase(f"{phase}.{facts.compile_id}", facts), True

    def get_strategy(self, phase: str) -> dict[str, list[list[int]]]:
        """Return, for every sharded operator, the number of slices of every dimension of every tensor. Raise KeyError
        if `compile` did not return this name."""
        return _facts(phase).strategies

    def get_parallel_graph_info(self, phase: str) -> dict[str, dict[str, Any]]:
        """Return one rank's operators (`MatMul-0`) with their inputs and fields, before fusion; mspc makes one graph,
        `@graph_0`. Raise KeyError if `compile` did not return this name."""
        return {"@graph_0": _facts(phase).operators}

    def _get_shard_strategy(self, obj: Any) -> dict[str, list[list[int]]]:
        """Return the strategies of the last compile of a cell; empty before the first."""
        return dict(getattr(obj, "strategies_by_operator", {}))

    def _get_num_parallel_ops(self, obj: Any) -> int:
        """Return the number of operators with a strategy in the last compile of a cell."""
        return len(self._get_shard_strategy(obj))


def _facts(phase: Any) -> Any:
    if not isinstance(phase, Phase):
        raise ApiKeyError(f"{phase!r} is no phase of a compile", notes=["give the first result of compile()"])
    return phase.facts


_cell_graph_executor = CellGraphExecutor()
_CellGraphExecutor = CellGraphExecutor
_executor, _Executor = _cell_graph_executor, CellGraphExecutor
"""Their names in MindSpore 1."""


from_numpy = Tensor.from_numpy
ms_function = jit


def tensor(input_data: Any = None, dtype: Any = None, shape: Any = None, init: Any = None) -> Tensor:
    """Return a Tensor."""
    return Tensor(input_data, dtype, shape, init)


def mutable(input_data: Any, dynamic_len: bool = False) -> Any:
    """Return the argument. Numbers and tuples passed to a compiled function are compile-time constants; a warning says
    so if they contain numbers. Tensors may change between calls in any case. Within a compiled function numbers become
    tensors, with values known only at run time."""
    if dynamic_len or not isinstance(input_data, Tensor):
        say_once(
            "mutable",
            f"{place_of_caller()}mutable() changes nothing here: another number, or another length, is another graph",
        )
    return input_data


def is_tensor(obj: Any) -> bool:
    """Return whether it is a Tensor."""
    return isinstance(obj, Tensor)


def jit_class(cls: type) -> type:
    """Return the class unchanged: classes used in `construct` need no mark."""
    return cls


ms_class = jit_class


def lazy_inline(fn: Any = None, attrs: Any = None, policy: Any = None) -> Any:
    """Decorate `__init__`, bare or with arguments: equal cells of the class that a `for` statement calls become one
    graph, run by a loop, if possible. Cells elsewhere are inlined."""

    def marked(decorated: Any) -> Any:
        decorated.is_lazily_inlined = True
        return decorated

    return marked(fn) if callable(fn) else marked


@dataclass(frozen=True)
class RowTensor:
    """Rows of a tensor: values[i] is row indices[i] of a tensor of this shape; all other rows are zeros."""

    indices: Any
    values: Any
    shape: tuple[int, ...]

    @property
    def dense_shape(self) -> tuple[int, ...]:
        return self.shape

    @property
    def dtype(self) -> Any:
        return self.values.dtype


RowTensorInner = RowTensor
