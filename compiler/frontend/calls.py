"""Calls inside `construct`: operators become nodes, cells and functions are inlined, everything else is called."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import random
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from mspc.compiler.frontend.argument_binding import as_it_is, bind, naming_arguments
from mspc.compiler.frontend.attributes import (
    call_imported,
    get_attribute,
    method_function,
    register_cells,
    take_early_reads,
)
from mspc.compiler.frontend.branches import call_chosen, mapped
from mspc.compiler.frontend.builtins import HANDLERS, REFUSED, attribute_handlers
from mspc.compiler.frontend.cell_marks import (
    as_float,
    is_sharded_function,
    mark,
    planned,
    scope_of,
    shard_values,
    within,
)
from mspc.compiler.frontend.gradient import HookedInputs, call_gradient, hook_backward, own_gradient, register_hook
from mspc.compiler.frontend.primitives import call_primitive
from mspc.compiler.frontend.remembered_calls import call_key, remember
from mspc.compiler.frontend.source import FunctionSource
from mspc.compiler.frontend.state import MAX_DEPTH, Tracer
from mspc.compiler.frontend.values import (
    COMPUTED,
    MISSING,
    POISON,
    Closure,
    Frame,
    OneOf,
    Poisoned,
    TensorMethod,
    TooManyErrors,
    contains_tensor,
    describe,
    is_read,
    values_in,
    way_of,
)
from mspc.ir.diagnostics import MspcError, is_about_digits, kind_of
from mspc.ir.graph import OFFLOAD, OFFLOAD_INSIDE, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.common.gradient import GradientFunction, JitFunction, NamedCall
from mspc.mindspore_api.common.parameter import Parameter as Weight
from mspc.mindspore_api.common.parameter import ParameterTuple
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import is_own
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.optim.optimizer import Optimizer
from mspc.mindspore_api.ops.multitype import Morph, MultitypeFuncGraph
from mspc.mindspore_api.ops.own_operators import HookBackward
from mspc.mindspore_api.ops.primitive import Primitive

Args = Sequence[Any]
Kwargs = Mapping[str, Any]

RECURSION = "numbers and shapes may end a recursion; if the contents of a tensor do, write a loop"
MARKS = frozenset(("recompute", "strategy_gen_mode", OFFLOAD, OFFLOAD_INSIDE))
"""Flags of cells that are recorded on operators."""
_HANDLERS = HANDLERS | attribute_handlers(get_attribute)


@dataclass(frozen=True)
class Callee:
    """A function to be inlined.

    defaults: values of the last positional parameters. globals: names of its module. enclosing: returns the value of a
    name of the enclosing functions, `MISSING` for other names. is_method: messages do not count its first argument.
    """

    source: FunctionSource
    name: str
    defaults: Args
    keyword_defaults: Kwargs
    globals: Mapping[str, Any]
    enclosing: Callable[[str], Any]
    is_method: bool = False


def call(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Args, kwargs: Kwargs, held: str = "") -> Any:
    """Evaluate `fn(*args, **kwargs)` at `node`. `held` is the attribute or variable that holds `fn`. Raise MspcError if
    the call is wrong or not supported, and Poisoned if the callee had an error, already recorded."""
    if isinstance(fn, OneOf) or (not is_read(fn) and way_of(fn, *args, *kwargs.values()) is not None):
        return call_chosen(tracer, frame, node, fn, args, kwargs)
    if isinstance(fn, Primitive):
        return call_primitive(tracer, frame, node, fn, args, kwargs)
    key = call_key(fn, args, kwargs)
    first = len(tracer.builder.nodes)
    result = _call(tracer, frame, node, fn, args, kwargs, held)
    if isinstance(result, Weight | Parameter) and not frame.source.file.is_own:
        function = type(fn).construct if isinstance(fn, Cell) else getattr(fn, "__func__", fn)
        if isinstance(function, types.FunctionType) and is_own(function.__code__.co_filename):
            tracer.at(frame, node)
            result = as_it_is(tracer, result)  # the current value of a parameter that mspc's own function returns
    if key is not None:
        remember(tracer, key, result, first, (fn, args, kwargs))
    return result


def _runner(tracer: Tracer, frame: Frame, node: ast.AST) -> Callable[[Any, list[Any]], Any]:
    return lambda function, args: call(tracer, frame, node, function, args, {})


def _call(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Args, kwargs: Kwargs, held: str) -> Any:
    if isinstance(fn, Cell):
        return call_cell(tracer, frame, node, fn, args, kwargs, held)
    if isinstance(fn, types.FunctionType):
        return _call_function(tracer, frame, node, fn, args, kwargs)
    if isinstance(fn, types.MethodType):
        return _call_method(tracer, frame, node, fn, args, kwargs)
    if isinstance(fn, Closure):
        names, enclosing = fn.frame.globals, fn.frame.lookup
        callee = Callee(fn.source, fn.name, fn.defaults, fn.keyword_defaults, names, enclosing)
        return inline(tracer, frame, node, callee, args, kwargs)
    tracer.at(frame, node)
    if isinstance(fn, TensorMethod):
        return _call_tensor_method(tracer, frame, node, fn, args, kwargs)
    if isinstance(fn, GradientFunction):
        return call_gradient(tracer, frame, node, fn, args, kwargs)
    if isinstance(fn, HookBackward) and not kwargs:
        return hook_backward(tracer, fn.hook_fn, args, _runner(tracer, frame, node))
    if isinstance(fn, NamedCall):
        count = len(args) - len(fn.names)
        return call(tracer, frame, node, fn.fn, args[:count], dict(zip(fn.names, args[count:], strict=True)), held)
    if isinstance(fn, JitFunction | Morph):
        return call(tracer, frame, node, fn.fn, args, kwargs, held)
    if isinstance(fn, MultitypeFuncGraph):
        try:
            chosen = fn.chosen(args, tracer.is_tensor)
        except MspcError as error:
            raise tracer.error(error.message, error.notes, error.kind) from None
        return call(tracer, frame, node, chosen, args, kwargs, held)
    if is_sharded_function(fn):
        inputs = shard_values(tracer, list(args), fn.in_strategy, "in_strategy")
        with within(tracer, fn):
            result = call(tracer, frame, node, fn.fn, inputs, kwargs, held)
        tracer.at(frame, node)
        return shard_values(tracer, result, fn.out_strategy, "out_strategy")
    if isinstance(fn, functools.partial):
        return call(tracer, frame, node, fn.func, [*fn.args, *args], {**fn.keywords, **kwargs}, held)
    handler = _HANDLERS.get(fn) if isinstance(fn, types.BuiltinFunctionType | type) else None
    if handler is not None:
        return call_handler(tracer, frame, node, fn, handler, args, kwargs)
    return _call_object(tracer, frame, node, fn, args, kwargs)


def _call_object(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, args: Args, kwargs: Kwargs) -> Any:
    if isinstance(fn, Value | Tensor) or not callable(fn):
        raise tracer.error(f"{describe(fn)} cannot be called", kind=TypeError, code="E0218")
    if isinstance(fn, type):
        return call_class(tracer, fn, args, kwargs)
    if getattr(type(fn), "scans", False):
        from mspc.compiler.frontend.micro_batches import rolled

        found = rolled(tracer, frame, node, fn, args, kwargs)
        if found is not None:
            return found
    own = inspect.getattr_static(type(fn), "__call__", None)
    if getattr(type(fn), "cuts_batch", False):
        from mspc.compiler.frontend.micro_batches import in_micro_batches, unrolled  # late: few networks have parts

        if tracer.stages == 1:
            one_by_one = functools.partial(_call_function, tracer, frame, node, own, [fn, *args], kwargs)
            found = unrolled(tracer, frame, one_by_one)
            if found is not None:
                return found
        return in_micro_batches(tracer, frame, node, fn.place, *args)
    if _is_traced(tracer, own):
        return _call_function(tracer, frame, node, own, [fn, *args], kwargs)
    return call_python(tracer, fn, args, kwargs)


# Cells and functions --------------------------------------------------------------------------------------


def call_cell(
    tracer: Tracer, frame: Frame, node: ast.AST, cell: Cell, args: Args, kwargs: Kwargs, held: str = ""
) -> Any:
    """Inline `cell.construct` in a scope of its own."""
    construct = cell.__dict__.get("construct") or type(cell).construct
    construct = construct.fn if isinstance(construct, JitFunction) else construct
    function = construct.__func__ if isinstance(construct, types.MethodType) else construct
    if function is Cell.construct:
        raise frame.error(node, f"{type(cell).__name__} defines no construct()")
    if not isinstance(function, types.FunctionType):
        raise frame.error(node, f"{type(cell).__name__}.construct is {describe(function)}, not a function")
    register_cells(tracer, cell, held)
    tracer.cells[id(cell)] = cell
    tracer.reads.attribute(cell, "construct", construct)
    tracer.reads.value(cell, type(cell).__name__)
    flags = cell.get_flags()
    tracer.at(frame, node)
    first = len(tracer.builder.nodes)
    inputs: Args = args
    if "to_float" in flags:
        inputs = [as_float(tracer, arg, flags["to_float"]) for arg in args]
        kwargs = as_float(tracer, dict(kwargs), flags["to_float"])
    inputs = shard_values(tracer, inputs, cell.in_strategy, "in_strategy")
    if cell.in_strategy is not None:
        first = len(tracer.builder.nodes)
    for hook, is_named in cell.hooks("before"):
        inputs, kwargs = _hooked(tracer, frame, node, cell, hook, inputs, kwargs, is_named)
    inputs, end_hooks = _with_backward_hooks(tracer, frame, node, cell, inputs)
    naming: AbstractContextManager[None] = nullcontext()
    if is_own(function.__code__.co_filename):
        depth = len(frame.frames(node))
        naming = naming_arguments(tracer, type(cell).__name__, function, [cell, *inputs], kwargs, depth)
    with planned(tracer, cell.parameter_plan), naming:
        if getattr(cell, "is_imported", False):
            result = call_imported(tracer, frame, node, cell, inputs, kwargs)
        else:
            result = _inline_function(tracer, frame, node, function, [cell, *inputs], kwargs, True, cell)
    for hook, is_named in cell.hooks("behind"):
        named = [dict(kwargs)] if is_named else []
        other = call(tracer, frame, node, hook, [cell, tuple(inputs), *named, result], {})
        result = result if other is None else other
    result = result if end_hooks is None else end_hooks(result)
    own = getattr(cell, "bprop", None)
    if own is not None:
        result = own_gradient(tracer, own, [*inputs, *kwargs.values()], result, _runner(tracer, frame, node))
    tracer.at(frame, node)
    result = shard_values(tracer, result, cell.out_strategy, "out_strategy")
    if "result_float" in flags:
        result = as_float(tracer, result, flags["result_float"])
    if tracer.stages > 1 or not MARKS.isdisjoint(flags):
        mark(tracer, cell, first)
    return result


def _with_backward_hooks(
    tracer: Tracer, frame: Frame, node: ast.AST, cell: Cell, inputs: Args
) -> tuple[Args, Callable[[Any], Any] | None]:
    """Return the inputs of a cell as its backward hooks need them, and a function that applies the hooks to its result;
    None without hooks."""
    if not any(cell.backward_hooks()) or getattr(cell, "bprop", None) is not None:
        return inputs, None
    tracer.at(frame, node)
    hooked = HookedInputs(tracer, cell, inputs, _runner(tracer, frame, node))

    def end(result: Any) -> Any:
        tracer.at(frame, node)
        return hooked.result_of(result)

    return hooked.inputs, end


def _hooked(
    tracer: Tracer, frame: Frame, node: ast.AST, cell: Cell, hook: Any, inputs: Args, kwargs: Kwargs, is_named: bool
) -> tuple[Args, Kwargs]:
    """Return the arguments of `construct` after a hook of `Cell.register_forward_pre_hook`."""
    found = call(tracer, frame, node, hook, [cell, tuple(inputs), *([dict(kwargs)] if is_named else [])], {})
    if found is None:
        return inputs, kwargs
    if is_named:
        if not isinstance(found, tuple) or len(found) != 2:
            raise frame.error(node, f"a hook with_kwargs returns (inputs, named), not {describe(found)}")
        return found
    return found if isinstance(found, tuple) else (found,), kwargs


def _call_function(
    tracer: Tracer, frame: Frame, node: ast.AST, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> Any:
    check = getattr(function, "check_arguments", None)
    if check is not None:
        tracer.at(frame, node)
        try:
            check(args, kwargs)
        except MspcError as error:
            raise tracer.error(error.message, error.notes, kind=error.kind or TypeError) from None
        if len(check.args) == 2:
            with naming_arguments(tracer, *check.args, args, kwargs, len(frame.frames(node))):
                return _call_checked(tracer, frame, node, function, args, kwargs)
    return _call_checked(tracer, frame, node, function, args, kwargs)


def _call_checked(
    tracer: Tracer, frame: Frame, node: ast.AST, function: types.FunctionType, args: Args, kwargs: Kwargs
) -> Any:
    if _is_traced(tracer, function):
        return _inline_function(tracer, frame, node, function, args, kwargs)
    checked = _within(tracer, function)
    if checked is not None:
        return _call_function(tracer, frame, node, checked, args, kwargs)
    tracer.at(frame, node)
    return call_python(tracer, function, args, kwargs)


def _is_traced(tracer: Tracer, function: Any) -> bool:
    return isinstance(function, types.FunctionType) and tracer.sources.file(function.__code__.co_filename).is_traced


def _within(tracer: Tracer, function: Any) -> types.FunctionType | None:
    """Return the function wrapped by one of mspc's that only checks the arguments, or None."""
    wrapped = getattr(function, "__wrapped__", None)
    if not (isinstance(function, types.FunctionType) and is_own(function.__code__.co_filename)):
        return None
    return wrapped if isinstance(wrapped, types.FunctionType) and _is_traced(tracer, inspect.unwrap(wrapped)) else None


def _call_method(
    tracer: Tracer, frame: Frame, node: ast.AST, method: types.MethodType, args: Args, kwargs: Kwargs
) -> Any:
    owner, function = method.__self__, method.__func__
    if isinstance(owner, Cell) and function is type(owner).construct:
        return call_cell(tracer, frame, node, owner, args, kwargs)
    is_constant = isinstance(owner, Tensor)
    if is_constant and (contains_tensor(list(args)) or contains_tensor(dict(kwargs))):
        tracer.at(frame, node)
        of_graph = TensorMethod(tracer.value(owner), method.__name__)
        return _call_tensor_method(tracer, frame, node, of_graph, args, kwargs)
    read = function if _is_traced(tracer, function) else None if is_constant else _within(tracer, function)
    if read is not None:
        return _inline_function(tracer, frame, node, read, [owner, *args], kwargs, True)
    tracer.at(frame, node)
    return call_python(tracer, method, args, kwargs)


def _call_tensor_method(
    tracer: Tracer, frame: Frame, node: ast.AST, method: TensorMethod, args: Args, kwargs: Kwargs
) -> Any:
    given = [method.value, *args]
    if method.name == "register_hook":
        return register_hook(tracer, method.value, args, kwargs, _runner(tracer, frame, node))
    function, named = method_function(tracer, method.name, given, kwargs)
    return call(tracer, frame, node, function, given, named)


def _inline_function(
    tracer: Tracer, frame: Frame, node: ast.AST, function: types.FunctionType, args: Args, kwargs: Kwargs,
    is_method: bool = False, cell: Cell | None = None,
) -> Any:  # fmt: skip
    try:
        source = tracer.sources.function(function)
    except MspcError as error:
        raise frame.error(node, error.message, error.notes, error.kind) from None
    tracer.reads.function(function)
    callee = Callee(
        source,
        function.__name__,
        function.__defaults__ or (),
        function.__kwdefaults__ or {},
        function.__globals__,
        lambda name: _captured(tracer, function, name),
        is_method,
    )
    return inline(tracer, frame, node, callee, args, kwargs, cell)


def _captured(tracer: Tracer, function: types.FunctionType, name: str) -> Any:
    names = function.__code__.co_freevars
    if name not in names or function.__closure__ is None:
        return MISSING
    try:
        found = function.__closure__[names.index(name)].cell_contents
    except ValueError:
        return MISSING
    tracer.reads.variable(function, name, found)
    return found


def inline(
    tracer: Tracer, caller: Frame, node: ast.AST, callee: Callee, args: Args, kwargs: Kwargs, cell: Cell | None = None
) -> Any:
    """Run the body of a function with its arguments bound. `cell` opens a scope of its own."""
    if caller.depth >= MAX_DEPTH:
        text, note = f"calls nest more than {MAX_DEPTH} deep: the recursion of '{callee.name}' does not end", RECURSION
        running, callers = set[int](), caller
        while callers is not None:
            running.add(id(callers.locals.get("self")))
            callers = callers.caller
        if cell is not None and id(cell) not in running:
            text = f"cells nest more than {MAX_DEPTH} deep"
            note = "call them one after the other, as nn.SequentialCell does"
        frames = tuple(dict.fromkeys(caller.frames(node)))
        tracer.note(MspcError(text, notes=[note], frames=frames, kind=RuntimeError, code="E0217"))
        raise TooManyErrors  # if two calls make two more each, tracing the rest takes forever
    try:
        names = bind(
            callee.source.tree, callee.name, args, kwargs, callee.defaults, callee.keyword_defaults, callee.is_method
        )
    except MspcError as error:
        raise caller.error(node, error.message, error.notes, error.kind) from None
    frame = Frame(callee.source, names, callee.globals, callee.enclosing, caller, caller.frames(node))
    take_early_reads(tracer, frame)
    if cell is not None:
        if caller.depth:
            frame.scope = scope_of(tracer, caller.scope, cell)
        flags = cell.get_flags()
        frame.to_float, frame.precision = flags.get("to_float"), flags.get("precision")
        if isinstance(cell, Optimizer) or flags.get("updates"):
            frame.phase = "update"
    result = tracer.run(frame)
    if result is POISON:
        raise Poisoned
    return result


_CHANGING = "append extend insert pop remove clear sort reverse update setdefault popitem add discard".split()

COUNTED_LATER = {
    "bincount": "ops.histc(x, n, 0, n) counts the numbers from 0 to n - 1; so does ops.one_hot(x, n, on, off).sum(0)",
    "masked_select": "ops.select(mask, x, other) keeps the shape; the sum of the elements is (x * mask).sum()",
    "nonzero": "ops.select(x != 0, a, b) keeps the shape; ops.count_nonzero(x) says how many there are",
    "unique": "call it outside the network, and pass its result as an argument",
    "unique_consecutive": "call it outside the network, and pass its result as an argument",
}
"""Alternatives to functions whose number of results depends on the contents of a tensor."""
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)
_WITHOUT_DRAWS = frozenset({"seed", "getstate", "setstate", "get_state", "set_state", "spawn"})


def call_handler(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, handler: Any, args: Args, kwargs: Kwargs) -> Any:
    try:
        return handler(tracer, frame, node, *args, **kwargs)
    except TypeError as error:
        try:
            inspect.signature(handler).bind(tracer, frame, node, *args, **kwargs)
        except TypeError:
            raise tracer.error(f"{fn.__name__}() does not take these arguments", kind=TypeError, code="E0209") from None
        raise error


def call_class(tracer: Tracer, cls: type, args: Args, kwargs: Kwargs) -> Any:
    if issubclass(cls, Weight):
        raise tracer.error("a Parameter must be made in __init__, not inside a compiled function", code="E0208")
    if issubclass(cls, Tensor) and args and contains_tensor(args[0]):
        value = tracer.value(args[0]) if isinstance(args[0], Value | Weight) else None
        if value is None:
            raise tracer.error("Tensor() of several tensors", ["use ops.stack"])
        dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
        return as_it_is(tracer, value if dtype is None else tracer.cast(value, dtype))
    if cls is range and contains_tensor(list(args)):
        from mspc.compiler.frontend.loops import range_of

        return range_of(tracer, args)
    if issubclass(cls, Cell):
        made = call_python(tracer, cls, args, kwargs)
        if next(made.get_parameters(), None) is not None:
            message = f"{cls.__name__} holds parameters: it must be made in __init__, not inside a compiled function"
            raise tracer.error(message)
        return made
    holds = issubclass(cls, functools.partial | ParameterTuple) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    if holds or dataclasses.is_dataclass(cls):
        return call_python(tracer, cls, args, kwargs, takes_tensors=True)
    return tracer.own(call_python(tracer, cls, args, kwargs))


def call_python(tracer: Tracer, fn: Any, args: Args, kwargs: Kwargs, takes_tensors: bool = False) -> Any:
    """Call a Python object with arguments known at compile time. Raise MspcError if an argument is a tensor of the
    graph, a compiled function may not call this function, or it raises."""
    name = getattr(fn, "__name__", type(fn).__name__)
    if isinstance(fn, types.BuiltinFunctionType | type) and fn in REFUSED:
        raise tracer.error(f"{name}() is not supported inside a compiled function", code="E0203")
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, list | dict | set | tuple | str) and not isinstance(fn, types.MethodType):
        if name in _CHANGING and id(owner) not in tracer.owned:
            raise tracer.error(
                f"{name}() would change a {type(owner).__name__} that lives outside of the compiled function",
                [f"make a new one inside: {'dict' if isinstance(owner, dict) else 'list'}(...)"], code="E0207",
            )
        takes_tensors = True
    is_own = str(getattr(fn, "__module__", None)).startswith("mspc.")
    if name == "tensor" and is_own:
        return call_class(tracer, Tensor, args, kwargs)
    if name == "mutable" and is_own and args:
        return _mutable(tracer, args[0])
    # mspc's own functions may use the shape or the name of a parameter. An access to its values is refused there.
    kinds = COMPUTED if is_own else (*COMPUTED, Weight)
    if not takes_tensors and contains_tensor((args, kwargs), kinds):
        if name in COUNTED_LATER and is_own:
            message = f"{name}(): how many elements it gives is only known at run time"
            raise tracer.error(message, [COUNTED_LATER[name]], kind=TypeError)
        weight = next(values_in((args, kwargs), (Weight,)), None)
        unknown = "tensors" if weight is None else describe(weight)
        raise tracer.error(
            f"{name}() takes only values known at compile time, not {unknown}",
            ["operators on tensors are in mindspore.ops"],
            kind=TypeError, code="E0305",
        )
    if isinstance(owner, _GENERATORS) and name not in _WITHOUT_DRAWS:
        tracer.warn(
            f"{name}() draws a random number once, when the network is compiled: all calls have the same one; "
            "operators that draw at every call are in mindspore.ops"
        )
    try:
        result = fn(*args, **kwargs)
    except MspcError as error:
        raise tracer.error(error.message, error.notes, error.kind) from None
    except Exception as error:
        reason = f"raised {type(error).__name__}: {error}"
        if is_own and is_about_digits(error):
            reason = f"does not take {', '.join(map(describe, [*args, *kwargs.values()]))}"
        mistake = tracer.error(f"{name}() {reason}", kind=kind_of(error))
        mistake.python = error
        raise mistake from None
    is_new = isinstance(result, list | dict) and takes_tensors and not isinstance(fn, type)
    return tracer.own(result) if is_new else result


def _mutable(tracer: Tracer, value: Any) -> Any:
    """Evaluate `mutable(value)`: numbers in it become tensors whose values are known only at run time."""

    def leaf(number: Any) -> Any:
        if not isinstance(number, bool | int | float):
            return number
        made = tracer.value(number)
        tracer.weak.add(made)
        return made

    return mapped(tracer, value, leaf, (bool, int, float))
