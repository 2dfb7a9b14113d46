"""The graph of a network as a `.mindir` file: node by node with MindSpore's operators; regions become functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from mspc.checkpoint.mindir import (
    AS_TUPLE,
    ATTRIBUTES,
    CALL,
    SAME,
    SIGNATURES,
    MindirNode,
    attributes_of_fields,
    input_of_field,
    words_of,
)
from mspc.checkpoint.mindir_writing import EFFECTS, WrittenGraph, write_mindir
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import trace_call
from mspc.compiler.frontend.trace import Either, Leaf, Traced
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Value, element_types
from mspc.ir.text.facts import fields_of
from mspc.ir.types import TensorType, Type
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.ops.control.regions import COUNT, For, If, Loop, While
from mspc.ops.convolution.window import paddings
from mspc.ops.tensor.scatter import TensorScatterUpdate
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank

REGIONS = ("If", "While", "For", "Call")
"""Operators that run graphs, written as calls of functions."""


def write_regions(writer: _Writer, node: Node, operands: Sequence[str]) -> str:
    """Add a node that runs graphs, and those graphs. Return the name of its result, a tuple. Raise MspcError if the
    loop scans, or stacks the results of every iteration."""
    op = node.op
    if isinstance(op, If):
        calls = [writer.node("Partial", [_function(writer, each), *operands[1:]], {}, None) for each in node.regions]
        return writer.node(CALL, [writer.node("Switch", [operands[0], *calls], {}, None)], {}, None)
    if isinstance(op, Loop):
        if op.scanned or op.stacked or (isinstance(op, While) and op.counted):
            raise node.error(f"export: {node.label} reads or keeps something of every turn, which is not written")
        return _write_loop(writer, node, op, operands)
    return writer.node(CALL, [_function(writer, node.regions[0]), *operands], {}, None)


def _function(writer: _Writer, region: Graph) -> str:
    """Return the name of a region's function, which returns a tuple of its results. Write it first if it is new."""
    if region not in writer.functions_of:
        own = _begun(writer, region, region.name)
        writer.functions_of[region] = own.name
        own.add(region.nodes)
        own.finish(own.node("MakeTuple", [own.name_of(value) for value in region.results], {}, None))
    return writer.functions_of[region]


def _begun(writer: _Writer, region: Graph, name: str, more: dict[str, TensorType] | None = None) -> _Writer:
    """Return a writer of a graph with the inputs `more`, then the parameters of a region."""
    names = {parameter: f"{name}:{parameter.name}" for parameter in region.parameters}
    own = writer.inside(name, {**(more or {}), **{names[each]: each.tensor_type for each in region.parameters}})
    own.names |= names
    return own


def _write_loop(writer: _Writer, node: Node, op: Loop, operands: Sequence[str]) -> str:
    """Add a call of a loop's head and return its name. Its inputs are those of the body, for a `For` after the number
    of iterations."""
    body = node.regions[-1]
    counts = isinstance(op, For)
    head = f"{body.name}_head"
    first = [*operands]
    if counts:
        turns = operands[0] if op.first else writer.constant(np.array(op.known_turns(()), np.int64))
        first = [turns, writer.constant(np.array(0, np.int64)), *operands[op.first :]]
    if head not in writer.called:
        _write_head(writer, node, op, head)
        _write_body(writer, node, op, head)
        # The head calls this function after the last iteration: it returns the carried values.
        end, carried = f"{body.name}_end", body.parameters[op.leading : op.leading + op.carried]
        own = writer.inside(end, {f"{end}:{each.name}": each.tensor_type for each in carried})
        own.finish(own.node("MakeTuple", [*own.inputs], {}, None))
    return writer.node(CALL, [head, *first], {}, None)


def _write_head(writer: _Writer, node: Node, op: Loop, name: str) -> None:
    body = node.regions[-1]
    limit = f"{name}:turns"
    counts = isinstance(op, For)
    own = _begun(writer, body if counts else node.regions[0], name, {limit: COUNT} if counts else {})
    given = [*own.inputs]
    if isinstance(op, For):
        condition = own.node("Less", [given[1], limit], {}, None)
    else:
        own.add(node.regions[0].nodes)
        condition = own.name_of(node.regions[0].results[0])
    own.functions.add("Less")
    turn = own.node("Partial", [f"{body.name}_turn", *given], {}, None)
    begin = len(given) - len(body.parameters) + op.leading
    end = own.node("Partial", [f"{body.name}_end", *given[begin : begin + op.carried]], {}, None)
    own.finish(own.node(CALL, [own.node("Switch", [condition, turn, end], {}, None)], {}, None))


def _write_body(writer: _Writer, node: Node, op: Loop, head: str) -> None:
    """Write an iteration, whose last step calls the head with the carried values."""
    body = node.regions[-1]
    name = f"{body.name}_turn"
    limit = f"{name}:turns"
    own = _begun(writer, body, name, {limit: COUNT} if isinstance(op, For) else {})
    given = [*own.inputs]
    ahead: list[str] = []
    if isinstance(op, For):
        one = own.constant(np.array(1, np.int64))
        ahead = [limit, own.node("Add", [given[1], one], {}, None)]
        own.functions |= {"Add", "Sub"}
        if op.reverse:
            last = own.node("Sub", [limit, one], {}, None)
            own.names[body.parameters[0]] = own.node("Sub", [last, given[1]], {}, None)
    own.add(body.nodes)
    carried = [own.name_of(value) for value in body.results]
    own.finish(own.node(CALL, [head, *ahead, *carried, *given[len(ahead) + op.carried :]], {}, None))


TUPLE, ITEM = "MakeTuple", "TupleGetItem"
_SAID = {"data_format": "NCHW", "mode": 1}
"""Fields that files write differently or leave out, with their values in that case."""
_LITERALS = {"=0": 0, "=False": False}
_LEFT_OUT = frozenset({"Print", "StopGradient"})
"""Operators replaced by their operand: the written network only predicts, and MindSpore loads no StopGradient on a
CPU."""
_MADE = frozenset({"Arange", "Eye", "Fill", "LinSpace", "Ones", "Range", "Zeros"})
"""Operators without operands, written as constants with their results."""


def write_network(target: Any, inputs: Sequence[Any], path: Path) -> None:
    """Write the computation of `target(*inputs)` on one device to a file. Raise MspcError if the network cannot be
    compiled, changes parameters, or has operators that such a file cannot hold."""
    traced = trace_call(target, describe_call(inputs, []), Config()).traced
    write_mindir(path, _Writer(traced).graph())


class _Writer:
    """Converter from the nodes of a graph to those of a file."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.names: dict[Value, str] = {}
        self.types: dict[str, Type] = {}
        self.nodes: list[MindirNode] = []
        self.constants: dict[str, Any] = {}
        self.functions: set[str] = set()
        self.name = traced.graph.name
        self.inputs: Mapping[str, TensorType] = {}
        self.called: dict[str, WrittenGraph] = {}
        self.functions_of: dict[Graph, str] = {}

    def graph(self) -> WrittenGraph:
        graph = self.traced.graph
        self._refuse([node for each in graph.graphs() for node in each.nodes])
        inputs: dict[str, TensorType] = {}
        parameters: list[tuple[str, str, np.ndarray]] = []
        for parameter in graph.parameters:
            self.names[parameter] = name = f"{graph.name}:{parameter.name}"
            if parameter.kind == "input":
                inputs[name] = parameter.tensor_type
            elif parameter.kind == "constant":
                value = self.traced.constants[parameter.name]
                self.constants[name] = value.fill(None) if isinstance(value, InitialValue) else np.asarray(value)
            else:
                self.names[parameter] = self.node("Load", [name, EFFECTS], {}, parameter.type)
                value = self.traced.parameters[parameter.name].asnumpy()
                parameters.append((name, parameter.name, np.asarray(value)))
        self.add(graph.nodes)
        output = self._result(self.traced.structure)
        return WrittenGraph(
            graph.name, inputs, parameters, self.constants, self.nodes, self.types, output, frozenset(self.functions),
            tuple(self.called.values()),
        )  # fmt: skip

    def inside(self, name: str, inputs: Mapping[str, TensorType]) -> _Writer:
        """Return a writer for a graph of this name that this one calls; `finish` adds the graph."""
        own = _Writer(self.traced)
        own.name, own.functions, own.called, own.functions_of = name, self.functions, self.called, self.functions_of
        own.inputs = inputs
        return own

    def finish(self, output: str) -> None:
        """Add the graph of this writer, with the result `output`, to the called graphs."""
        self.called[self.name] = WrittenGraph(
            self.name, self.inputs, (), self.constants, self.nodes, self.types, output, frozenset(self.functions)
        )

    def add(self, nodes: Sequence[Node]) -> None:
        """Add these nodes."""
        for node in nodes:
            self.names[node] = self._add(node)

    def _refuse(self, nodes: Sequence[Node]) -> None:
        """Raise MspcError for all nodes that cannot be written."""
        for node in nodes:
            if node.op.mutates or node.phase != "forward":
                raise node.error(f"export: {node.label} changes parameters or needs gradients, which is not written", [
                    "export the network that predicts, after set_train(False)"
                ])  # fmt: skip
        known = SAME | SIGNATURES.keys() | ATTRIBUTES.keys() | _MADE | {TUPLE, ITEM, *REGIONS} | _LEFT_OUT
        lacking = [node for node in nodes if node.op.name not in known]
        if lacking:
            names = ", ".join(sorted({node.op.name for node in lacking}))
            raise lacking[0].error(f"export: operators that are not written: {names}")

    def _add(self, node: Node) -> str:
        operator = node.op.name
        fields = {name: getattr(node.op, name) for name in fields_of(type(node.op))}
        operands = [self.name_of(value) for value in node.inputs]
        if node.regions:
            return write_regions(self, node, operands) if element_types(node.type) else ""  # "": it prints, at most
        if operator in _LEFT_OUT:
            return operands[0]
        if operator in _MADE and not operands:
            return self.constant(np.asarray(node.op.run(NumPyBackend(OneRank()))))
        if operator == ITEM:
            return self.node(operator, [*operands, self.constant(fields["index"])], {}, node.type)
        if operator == TUPLE:
            return self.node(operator, operands, {}, node.type)
        if operator in ("MaxPool", "AvgPool") and fields["pad_mode"].lower() == "pad":
            operands = [self._padded(node, operands[0], fields)]
            fields = {name: value for name, value in fields.items() if name not in ("pad", "count_include_pad")}
            fields["pad_mode"] = "valid"
        if fields.get("dims") and operator == "TensorScatterUpdate":
            return self._turned(node, operands)
        words = [word for part in words_of(operator) for word in part] if operator in SIGNATURES else []
        self._check(node, fields, {*words, *ATTRIBUTES.get(operator, ())})
        if operator in AS_TUPLE:
            operands = [self.node(TUPLE, operands, {}, None)]
        inputs: list[str] = []
        for word in words:
            if word == "()" or word.isdecimal():
                inputs.append(operands[0 if word == "()" else int(word)])
            else:
                known = word in _LITERALS
                inputs.append(self.constant(_LITERALS[word] if known else input_of_field(operator, word, fields[word])))
        inputs = inputs or operands
        if operator not in ATTRIBUTES:
            self.functions.add(operator)
        return self.node(operator, inputs, attributes_of_fields(operator, fields), node.type)

    def _turned(self, node: Node, operands: Sequence[str]) -> str:
        """Add an update along dimensions other than the leading ones, which are all that MindSpore's operator has."""
        order = cast(TensorScatterUpdate, node.op).order(len(node.shape))
        turned = self.node("Transpose", [operands[0], self.constant(tuple(order))], {}, None)
        self.functions |= {"Transpose", node.op.name}
        written = self.node(node.op.name, [turned, *operands[1:]], {}, None)
        back = tuple(order.index(dimension) for dimension in range(len(order)))
        return self.node("Transpose", [written, self.constant(back)], {}, node.type)

    def _padded(self, node: Node, operand: str, fields: Mapping[str, Any]) -> str:
        """Add a node that pads an image: MindSpore's pooling has no padding of its own."""
        (above, below), (left, right) = paddings(node.op.name, fields["pad"], 2)
        if node.op.name == "AvgPool" and not fields["count_include_pad"]:
            raise node.error(f"export: {node.label} with count_include_pad=False cannot be written")
        value = np.array(-np.inf if node.op.name == "MaxPool" else 0, node.tensor_type.dtype.numpy)
        inputs = [operand, self.constant((left, right, above, below)), self.constant(value)]
        return self.node("PadV3", inputs, {"mode": "constant", "paddings_contiguous": True}, None)

    def _check(self, node: Node, fields: dict[str, Any], written: set[str]) -> None:
        """Raise MspcError if a field that is not written differs from the value a reader assumes for it."""
        for name, value in fields.items():
            value = value or _SAID.get(name)  # no data_format is NCHW
            default = _SAID.get(name, getattr(type(node.op), name, None))
            if name not in written and value != default and (value or default):
                raise node.error(f"export: {node.label} with {name}={value!r} cannot be written")

    def name_of(self, value: Value) -> str:
        return self.constant(value.value) if isinstance(value, Constant) else self.names[value]

    def constant(self, value: Any) -> str:
        name = f"{self.name}:value_{len(self.constants)}"
        self.constants[name] = value
        return name

    def node(self, operator: str, inputs: Sequence[str], attributes: dict[str, Any], type: Type | None) -> str:
        name = f"{self.name}:{operator}-{len(self.nodes)}"
        self.nodes.append(MindirNode(name, operator, tuple(inputs), attributes))
        if type is not None:
            self.types[name] = type
        return name

    def _result(self, structure: Any) -> str:
        """Return the name of the result with this structure."""
        if isinstance(structure, Leaf):
            return self.name_of(self.traced.graph.results[structure.index])
        if isinstance(structure, tuple | list):
            return self.node(TUPLE, [self._result(each) for each in structure], {}, None)
        if isinstance(structure, Either):
            raise MspcError("export: the shapes of the network's results depend on the contents of a tensor")
        if isinstance(structure, bool | int | float | str | None):
            return self.constant(structure)
        raise MspcError(f"export: the network returns {type(structure).__name__}, which is not written")
