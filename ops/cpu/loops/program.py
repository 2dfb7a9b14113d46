"""All loops of a program are compiled together."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import numpy as np

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.convolution.window import Convolution
from mspc.ops.cpu.loops.attention_loops import attention_kernel, compiled_attention
from mspc.ops.cpu.loops.chain import chain_of, functions
from mspc.ops.cpu.loops.convolution import compiled_convolution, convolution_kernel
from mspc.ops.cpu.loops.kernel import Function, Kernel, chain_kernel, checking
from mspc.ops.cpu.loops.library import CompilerFailed, compiler, functions_of, warn_compiler_failed
from mspc.ops.cpu.loops.updates import (
    members_of,
    row_sums_call,
    row_sums_function,
    row_sums_kernel,
    row_update_functions,
    row_update_kernel,
    update_functions,
    update_kernel,
)
from mspc.ops.cpu.thread_pool import library
from mspc.ops.device import source_text
from mspc.ops.fused.body import BodyLine, along_rows, by_element, closes
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.fused.grouped_rows import GroupedRowUpdate
from mspc.ops.nn.attention_base import AttentionOp
from mspc.ops.op import Op

# Operators as lines that a compiled loop can have.


class Form(NamedTuple):
    """An operator as lines: `returns` are its results, `numbers` are operands after its own."""

    steps: Sequence[BodyLine]
    returns: Sequence[int]
    numbers: Sequence[Any] = ()


def form_of_op(op: Op, types: Sequence[TensorType]) -> Form | None:
    """Return the operator on operands of these types as lines, or None."""
    if isinstance(op, FusedElementwise):
        return Form(steps_of(op), op.returns)
    if op.mutates:
        return None
    if by_element(op) or along_rows(op) or closes(op):
        return Form([BodyLine(op, tuple(("x", i) for i in range(len(types))))], [0])
    return _emitted(op, types)


def _emitted(op: Op, types: Sequence[TensorType]) -> Form | None:
    """Return the operators that an operator emits for itself."""
    graph = Graph("lines")
    inputs = [Parameter(f"x{i}", type, "input") for i, type in enumerate(types)]
    builder = Builder(graph)
    made = op.as_lines(builder, *inputs)
    if made is None and type(op).as_rows is not Op.as_rows:
        made = op.as_rows(builder, *inputs)
    if made is None:
        return None
    places: dict[Value, tuple[str, int]] = {value: ("x", i) for i, value in enumerate(inputs)}
    numbers: list[Any] = []
    steps: list[BodyLine] = []
    for node in graph.nodes:
        for value in node.inputs:
            if isinstance(value, Constant) and value not in places:
                places[value] = ("x", len(inputs) + len(numbers))
                numbers.append(np.asarray(value.value, value.tensor_type.dtype.numpy))
        steps.append(BodyLine(cast(Op, node.op), tuple(places[value] for value in node.inputs)))
        places[node] = ("t", len(steps) - 1)
    if not all(isinstance(value, Node) for value in made):
        return None
    return Form(steps, [places[value][1] for value in made], numbers)


Call = tuple[Op, Sequence[TensorType], Sequence[TensorType]]
"""An operator with the types of its operands and of its results."""

_Bind = Callable[[Mapping[str, Function]], Kernel]

_HALF = re.compile(r"\bf16\b")


class LoopKernels(NamedTuple):
    """Kernels by call number: loops are `function(*operands, out=None)`, updates change their operands."""

    loops: dict[int, Kernel]
    updates: dict[int, Kernel]


class _Sources:
    """The C++ of functions by their names, which are made of the texts, so that equal ones are one."""

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}
        self.alone: set[str] = set()

    def add(self, text: str, alone: bool = False) -> str:
        """Add a text and return the name of the function that it calls NAME. alone: it is long, and the same in other
        programs."""
        name = f"f{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.by_name[name] = text.replace("NAME", name)
        if alone:
            self.alone.add(name)
        return name

    def compiled(self) -> dict[str, Function]:
        """Return all functions. Raise CompilerFailed if they cannot be compiled."""
        has_halves = any(_HALF.search(text) for text in self.by_name.values())
        prelude = f"#define HAS_HALVES {int(has_halves)}\n" + source_text("ops/cpu/loops/prelude.h")
        return functions_of(self.by_name, prelude, self.alone)


def kernels(be: Any, calls: Mapping[int, Call]) -> LoopKernels:
    """Return a kernel for each call that is a compiled loop. If the compiler fails, there are none; this is reported
    once."""
    command = compiler()
    sources = _Sources()
    made: dict[int, _Bind] = {}
    updates: set[int] = set()
    for number, call in calls.items() if command else ():
        update, other = _written(be, call, sources)
        kernel = update or other
        if kernel is not None:
            made[number] = kernel
        if update is not None:
            updates.add(number)
    if not made:
        return LoopKernels({}, {})
    try:
        with ThreadPoolExecutor(1) as other:
            other.submit(library)  # the pool, at the same time
            found = sources.compiled()
    except CompilerFailed as error:
        warn_compiler_failed(command, str(error))
        return LoopKernels({}, {})
    bound = {number: bind(found) for number, bind in made.items()}
    return LoopKernels(
        {number: kernel for number, kernel in bound.items() if number not in updates},
        {number: kernel for number, kernel in bound.items() if number in updates},
    )


def has_loop(be: Any, call: Call) -> tuple[bool, bool]:
    """Return whether a call becomes a compiled loop, and whether one that changes its operands, if there is a
    compiler."""
    update, other = _written(be, call, _Sources())
    return update is None and other is not None, update is not None


def _written(be: Any, call: Call, sources: _Sources) -> tuple[_Bind | None, _Bind | None]:
    """Return the function that makes the kernel of an update, or another kernel, from compiled functions."""
    update = _update(be, call, sources)
    if update is not None:
        return update, None
    return None, (
        _row_sums(be, call, sources) or _convolution(be, call, sources) or _attention(be, call, sources)
        or _loop(be, call, sources)
    )  # fmt: skip


def _loop(be: Any, call: Call, sources: _Sources) -> _Bind | None:
    op, operands, results = call
    form = form_of_op(op, operands)
    if form is None:
        return None
    given = [*operands, *(TensorType(dtype_of(number.dtype), number.shape) for number in form.numbers)]
    chain = chain_of(form.steps, form.returns, given)
    checked = [step for step in form.steps if type(step.op).check_operands is not Op.check_operands]
    if chain is None or any(kind == "t" for step in checked for kind, _ in step.operands):
        return None
    name = sources.add(functions(chain.nest, "NAME"))

    def bound(found: Mapping[str, Function]) -> Kernel:
        kernel = chain_kernel(be, chain, found[name], found[f"{name}_end"], results, form.numbers)
        return checking(kernel, checked) if checked else kernel

    return bound


def _row_sums(be: Any, call: Call, sources: _Sources) -> _Bind | None:
    op, operands, results = call
    combined = row_sums_call(op, operands)
    text = row_sums_function(combined, operands) if combined else None
    if combined is None or text is None:
        return None
    name = sources.add(text)
    return lambda found: row_sums_kernel(combined, operands, results[0], found[name], op.kernel(be))


def _convolution(be: Any, call: Call, sources: _Sources) -> _Bind | None:
    op, operands, results = call
    made = compiled_convolution(op, operands, results[0]) if isinstance(op, Convolution) else None
    if made is None:
        return None
    name = sources.add(made.text, alone=True)
    return lambda found: convolution_kernel(made, results[0], found[name], op.kernel(be))


def _attention(be: Any, call: Call, sources: _Sources) -> _Bind | None:
    op, operands, _ = call
    made = compiled_attention(op, operands) if isinstance(op, AttentionOp) else None
    if made is None:
        return None
    name = sources.add(made.text, alone=True)
    return lambda found: attention_kernel(be, made, found[name], op.kernel(be))


def _update(be: Any, call: Call, sources: _Sources) -> _Bind | None:
    op, operands, _ = call
    if isinstance(op, GroupedRowUpdate):
        return _row_update(be, op, operands, sources)
    known = members_of(op, operands)
    texts = update_functions(*known) if known is not None else None
    if known is None or texts is None:
        return None
    names = [sources.add(text) for text in texts.values()]
    return lambda found: update_kernel(op, *known, [found[name] for name in names], op.kernel(be))


def _row_update(be: Any, op: GroupedRowUpdate, operands: Sequence[TensorType], sources: _Sources) -> _Bind | None:
    texts = row_update_functions(op, operands)
    if texts is None:
        return None
    names = [sources.add(text) for text in texts.values()]
    return lambda found: row_update_kernel(op, operands, [found[name] for name in names], op.kernel(be))
