"""Makes the graph of a network for a `.mindir` file: what the front end reads, node by node, with MindSpore's
operators.

Input:  `%1 = Reshape(%0) {shape: (2, 8)}`. Output: a node `Reshape` whose inputs are `%0` and a constant (2, 8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from mspc.api.common.initializers import InitialValue
from mspc.checkpoint.mindir import (
    AS_TUPLE,
    ATTRIBUTES,
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
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.text.facts import fields_of
from mspc.ir.types import TensorType, Type
from mspc.ops.convolution.window import paddings
from mspc.ops.tensor.scatter import TensorScatterUpdate
from mspc.output.mindir_regions import REGIONS, write_regions
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import OneRank

TUPLE, ITEM = "MakeTuple", "TupleGetItem"
_SAID = {"data_format": "NCHW", "mode": 1}
"""Fields that files say otherwise, or not at all, and what they then are."""
_LITERALS = {"=0": 0, "=False": False}
_LEFT_OUT = frozenset({"Print", "StopGradient"})
"""Operators in whose place stands their operand: what is written predicts, and MindSpore loads no StopGradient on a
CPU."""
_MADE = frozenset({"Arange", "Eye", "Fill", "LinSpace", "Ones", "Range", "Zeros"})
"""Operators without operands, which are written as what they give."""


def write_network(target: Any, inputs: Sequence[Any], path: Path) -> None:
    """Write what `target(*inputs)` computes, as one device does, to a file.

    Raises:
        MspcError: the network cannot be compiled, changes parameters, or has operators that such a file cannot say.
    """
    traced = trace_call(target, describe_call(inputs, []), Config()).traced
    write_mindir(path, _Writer(traced).graph())


class _Writer:
    """Makes the nodes of a file out of those of a graph."""

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
                self._read(parameter, name)
                value = self.traced.parameters[parameter.name].asnumpy()
                parameters.append((name, parameter.name, np.asarray(value)))
        self.add(graph.nodes)
        output = self._result(self.traced.structure)
        return WrittenGraph(
            graph.name, inputs, parameters, self.constants, self.nodes, self.types, output, frozenset(self.functions),
            tuple(self.called.values()),
        )  # fmt: skip

    def inside(self, name: str, inputs: Mapping[str, TensorType]) -> _Writer:
        """What writes a graph of this name that this one calls; `finish` adds it."""
        own = _Writer(self.traced)
        own.name, own.functions, own.called, own.functions_of = name, self.functions, self.called, self.functions_of
        own.inputs = inputs
        return own

    def finish(self, output: str) -> None:
        """Add the graph of this writer, which gives `output`, to those that are called."""
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

    def _read(self, parameter: Parameter, name: str) -> None:
        """A node that reads a parameter."""
        self.names[parameter] = self.node("Load", [name, EFFECTS], {}, parameter.type)

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
        inputs = [self._input(operator, word, operands, fields) for word in words] or operands
        if operator not in ATTRIBUTES:
            self.functions.add(operator)
        return self.node(operator, inputs, attributes_of_fields(operator, fields), node.type)

    def _turned(self, node: Node, operands: Sequence[str]) -> str:
        """An update along other dimensions than the first, which are all that MindSpore's has."""
        order = cast(TensorScatterUpdate, node.op).order(len(node.shape))
        turned = self.node("Transpose", [operands[0], self.constant(tuple(order))], {}, None)
        self.functions |= {"Transpose", node.op.name}
        written = self.node(node.op.name, [turned, *operands[1:]], {}, None)
        back = tuple(order.index(dimension) for dimension in range(len(order)))
        return self.node("Transpose", [written, self.constant(back)], {}, node.type)

    def _padded(self, node: Node, operand: str, fields: Mapping[str, Any]) -> str:
        """A node that pads an image: MindSpore's pooling has no borders of its own."""
        (above, below), (left, right) = paddings(node.op.name, fields["pad"], 2)
        if node.op.name == "AvgPool" and not fields["count_include_pad"]:
            raise node.error(f"export: {node.label} with count_include_pad=False cannot be written")
        value = np.array(-np.inf if node.op.name == "MaxPool" else 0, node.tensor_type.dtype.numpy)
        inputs = [operand, self.constant((left, right, above, below)), self.constant(value)]
        return self.node("PadV3", inputs, {"mode": "constant", "paddings_contiguous": True}, None)

    def _check(self, node: Node, fields: dict[str, Any], written: set[str]) -> None:
        """Raise MspcError where a field that is not written has not the value that it then has."""
        for name, value in fields.items():
            value = value or _SAID.get(name)  # no data_format is NCHW
            default = _SAID.get(name, getattr(type(node.op), name, None))
            if name not in written and value != default and (value or default):
                raise node.error(f"export: {node.label} with {name}={value!r} cannot be written")

    def _input(self, operator: str, word: str, operands: Sequence[str], fields: dict[str, Any]) -> str:
        if word == "()":
            return operands[0]
        if word.isdecimal():
            return operands[int(word)]
        if word in _LITERALS:
            return self.constant(_LITERALS[word])
        return self.constant(input_of_field(operator, word, fields[word]))

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
        """The name of what has this structure."""
        if isinstance(structure, Leaf):
            return self.name_of(self.traced.graph.results[structure.index])
        if isinstance(structure, tuple | list):
            return self.node(TUPLE, [self._result(each) for each in structure], {}, None)
        if isinstance(structure, Either):
            raise MspcError("export: what the network returns has other shapes by the contents of a tensor")
        if isinstance(structure, bool | int | float | str | None):
            return self.constant(structure)
        raise MspcError(f"export: the network returns {type(structure).__name__}, which is not written")
