"""These tables map the operators of a `.mindir` file, as MindSpore 2.10 has them, to those of mspc: the order of a
node's operands and fields, the fields that are attributes instead, and the words for which codes stand.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import BYTES, EIGHT, FOUR, MOST_DIMENSIONS, WireField, fields, integers, signed, text
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DTYPES, DType, TensorType

ORDER = ("Load", "Depend")
"""Operators that return their first input: the others are for the order of effects."""
SAME = frozenset(
    """ACos Abs Acosh Add Asin Asinh Atan Atan2 Atanh BatchMatMulExt BitwiseAnd BitwiseOr BitwiseXor Ceil Cos Cosh
    Div DivNoNan Equal Erf Erfc Erfinv Exp Expm1 FastGeLU Flatten Floor FloorDiv FloorMod GatherNd GeLU
    Greater GreaterEqual HSigmoid HSwish Identity IsFinite IsInf IsNan Less LessEqual Lgamma Log Log1p
    LogicalAnd LogicalNot LogicalOr LogicalXor MaskedFill MatMulExt Max Maximum Min Minimum Mish Mod Mul
    MulNoNan Neg NotEqual OnesLike PReLU Pow ReLU ReLU6 RealDiv Reciprocal RemainderScalarTensor
    RemainderTensorScalar RemainderTensorTensor Rint Rsqrt SeLU Select SiLU Sigmoid
    SigmoidCrossEntropyWithLogits Sign Sin Sinh Softplus Softsign Sqrt Square SquaredDifference StopGradient
    Sub Tan Tanh TensorScatterAdd TensorScatterDiv TensorScatterMax TensorScatterMin TensorScatterMul
    TensorScatterSub TensorScatterUpdate Trunc TruncateDiv TruncateMod Xdivy Xlogy ZerosLike""".split()
)
"""Operators all of whose inputs are operands."""
OTHER_NAMES = {
    "Muls": "Mul", "Adds": "Add", "Subs": "Sub", "Divs": "Div", "LessScalar": "Less", "EqScalar": "Equal",
    "GreaterEqualScalar": "GreaterEqual", "FloorDivScalar": "FloorDiv", "PowTensorScalar": "Pow",
}  # fmt: skip
"""Operators that a file has under other names."""
SIGNATURES: dict[str, str] = {
    "Reshape": "0 shape",
    "Transpose": "0 perm",
    "Tile": "0 multiples",
    "BroadcastTo": "0 | shape",
    "ExpandDims": "0 axis",
    "Squeeze": "0 | axis",
    "Round": "0 =0",
    "MatMul": "0 1 | transpose_a transpose_b",
    "BatchMatMul": "0 1 | transpose_a transpose_b",
    "BiasAdd": "0 1 | data_format",
    "Softmax": "0 | axis",
    "LogSoftmax": "0 | axis",
    "ReduceMean": "0 axis | keep_dims",
    "ReduceSum": "0 axis | keep_dims =False",
    "ReduceMax": "0 axis | keep_dims",
    "ReduceMin": "0 axis | keep_dims",
    "ReduceProd": "0 axis | keep_dims",
    "ReduceAll": "0 axis | keep_dims",
    "ReduceAny": "0 axis | keep_dims",
    "Concat": "() | axis",
    "AddN": "()",
    "Split": "0 | axis output_num",
    "SplitWithSize": "0 split_sizes dim",
    "StridedSlice": "0 begin end strides | begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask",
    "Slice": "0 begin size",
    "Gather": "0 1 axis | batch_dims",
    "GatherD": "0 dim 1",
    "OneHot": "0 depth 1 2 | axis",
    "ScatterNd": "0 1 shape",
    "UnsortedSegmentSum": "0 1 num_segments",
    "TopK": "0 k",
    "Cast": "0 dst_type",
    "Argmax": "0 | axis output_type",
    "Argmin": "0 | axis output_type",
    "ArgMaxWithValue": "0 | axis keep_dims",
    "ArgMinWithValue": "0 | axis keep_dims",
    "CumSum": "0 axis | exclusive reverse",
    "CumProd": "0 axis | exclusive reverse",
    "ReverseV2": "0 | axis",
    "Triu": "0 | diagonal",
    "Elu": "0 | alpha",
    "HShrink": "0 | lambd",
    "SoftShrink": "0 | lambd",
    "BatchNorm": "0 1 2 3 4 | is_training epsilon momentum data_format",
    "LayerNorm": "0 1 2 | begin_norm_axis begin_params_axis epsilon",
    "RmsNorm": "0 1 | epsilon",
    "AvgPool": "0 | kernel_size strides pad_mode data_format",
    "PadV3": "0 paddings 1",
    "ResizeBilinearV2": "0 size | align_corners half_pixel_centers",
    "ResizeNearestNeighbor": "0 | size align_corners",
}
"""The inputs of nodes: operands by their numbers, all as one tuple `()`, fields by their names, values without effect
here with `=`. The words after the bar are handed to the Primitive's class, those before it to the Primitive."""
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "Conv2D": ("out_channel", "kernel_size", "mode", "pad_mode", "pad", "stride", "dilation", "group"),
    "MaxPool": ("kernel_size", "strides", "pad_mode"),
    "Stack": ("axis",),
    "Unstack": ("axis", "num"),
    "TopK": ("sorted",),
    "Tril": ("diagonal",),
    "Sort": ("axis", "descending"),
    "Pad": ("paddings",),
    "PadV3": ("mode", "paddings_contiguous"),
    "AvgPool3D": ("kernel_size", "strides", "pad_mode", "pad", "ceil_mode", "count_include_pad", "divisor_override"),
    "MaxPool3DWithArgmax": ("ksize", "strides", "pads", "dilation", "ceil_mode"),
    "DepthToSpace": ("block_size",),
    "SpaceToDepth": ("block_size",),
    "SparseSoftmaxCrossEntropyWithLogits": ("is_grad",),
}
"""Fields of operators that are attributes of the primitive."""
AS_TUPLE = frozenset({"Stack", "Concat", "AddN"})
"""Operators that take their operands as one tuple."""
_TYPES = {
    30: "Bool", 32: "Int8", 33: "Int16", 34: "Int32", 35: "Int64", 37: "UInt8", 38: "UInt16", 39: "UInt32",
    40: "UInt64", 42: "Float16", 43: "Float32", 44: "Float64", 45: "BFloat16",
}  # fmt: skip
_WORDS = {"data_format": ("NCHW", "NHWC"), "pad_mode": ("pad", "same", "valid")}
_TUPLES = {("Softmax", "axis"), ("Squeeze", "axis"), ("ReverseV2", "axis")}
"""Fields that are tuples in a file, whatever they are here."""
_ALL_DIMENSIONS = ("kernel_size", "strides", "stride", "dilation")


def words_of(operator: str) -> tuple[list[str], list[str]]:
    """Return the words of an operator in `SIGNATURES`, before and after the bar."""
    before, _, behind = SIGNATURES[operator].partition("|")
    return before.split(), behind.split()


def dtype_of_code(code: Any) -> DType:
    """The element type of a number. Raises KeyError for an unknown one."""
    return DTYPES[_TYPES[code]]


def field_value(name: str, value: Any) -> Any:
    """The value of a field. Raises KeyError or IndexError for an unknown code."""
    if name == "output_type":
        return dtype_of_code(value)
    if name in _WORDS and isinstance(value, int):
        return _WORDS[name][value]
    if name == "pad_mode":
        return value.lower()
    if name in _ALL_DIMENSIONS and len(value) in (4, 5):
        return value[2:]  # of batch and channels, too
    return value[0] if name == "axis" and isinstance(value, tuple) and len(value) == 1 else value


def fields_of_attributes(operator: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are attributes of a primitive."""
    return {
        name: field_value(name, attributes[name])
        for name in ATTRIBUTES.get(operator, ())
        if attributes.get(name) is not None
    }


def input_of_field(operator: str, name: str, value: Any) -> Any:
    """Return the input of a node for a field."""
    if isinstance(value, DType):
        return next(code for code, dtype in _TYPES.items() if dtype == value.name)
    if name in _WORDS:
        return _WORDS[name].index(value.lower() if name == "pad_mode" else value or _WORDS[name][0])
    if (operator, name) in _TUPLES and not isinstance(value, tuple):
        return (value,)
    if name in ("kernel_size", "strides") and not isinstance(value, tuple):
        return (value, value)
    return value


def attributes_of_fields(operator: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a primitive that MindSpore reads of an operator with these fields."""
    found = {name: fields[name] for name in ATTRIBUTES.get(operator, ())}
    if operator not in ("Conv2D", "MaxPool"):
        return found
    for name in _ALL_DIMENSIONS:
        if name in found and not isinstance(found[name], tuple):
            found[name] = (found[name], found[name])
        if name in found and (operator, name) != ("Conv2D", "kernel_size"):
            found[name] = (1, 1, *found[name])
    if operator == "MaxPool":
        return found | {"pad_mode": found["pad_mode"].upper(), "format": fields["data_format"] or "NCHW"}
    pad = found["pad"] if isinstance(found["pad"], tuple) else (found["pad"],) * 4
    return found | {"pad": pad, "groups": found["group"], "format": fields["data_format"] or "NCHW"}


# The classes of a `.mindir` graph, as it is read and written, and its scalars that are known before it runs: loops
# count their steps by them.


REFERENCE = "REF::"
"""The prefix of the name of a primitive, a graph or a node in the place of an operator."""
CALL, CHOICE, LOOP = "call", "choice", "loop"
"""Operators of nodes that call a graph, their first input, and of those that are made of calls: a choice by its input
has blocks `then` and `else`; a loop blocks `condition` and `body`, and in the attribute `carried` names that both read,
whose first values are its inputs. The results of both are tuples."""
ITEM = "TupleGetItem"


@dataclass(frozen=True)
class MindirNode:
    """A node: its name, its operator, the names of its inputs, and the operator's attributes."""

    name: str
    operator: str
    inputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass(frozen=True)
class MindirBlock:
    """Nodes that a node runs; they read names around them, too. outputs: names."""

    nodes: tuple[MindirNode, ...]
    outputs: tuple[str, ...]


def all_nodes(nodes: Iterable[MindirNode]) -> Iterator[MindirNode]:
    """These nodes and those in their blocks."""
    waiting = [iter(nodes)]
    while waiting:
        node = next(waiting[-1], None)
        if node is None:
            waiting.pop()
            continue
        yield node
        waiting += [iter(block.nodes) for block in node.attributes.values() if isinstance(block, MindirBlock)]


@dataclass(frozen=True)
class MindirGraph:
    """A graph. name: of the graph in calls. inputs, outputs: names.

    parameters: (the name that nodes know, the script's name, the value). constants: values by name; without one it is a
    mark of MindSpore's for the order of effects. types: of inputs that are tensors, if the file has them. marks: inputs
    that are such marks.
    """

    name: str
    inputs: tuple[str, ...]
    parameters: tuple[tuple[str, str, np.ndarray], ...]
    constants: dict[str, Any]
    nodes: tuple[MindirNode, ...]
    outputs: tuple[str, ...]
    types: Mapping[str, TensorType] = field(default_factory=dict[str, TensorType])
    marks: frozenset[str] = frozenset()


_RESULTS: dict[str, Callable[..., Any]] = {
    "Less": np.less, "LessEqual": np.less_equal, "Greater": np.greater, "GreaterEqual": np.greater_equal,
    "Equal": np.equal, "NotEqual": np.not_equal, "Add": np.add, "Sub": np.subtract, "Mul": np.multiply,
    "FloorDiv": np.floor_divide, "FloorMod": np.mod, "LogicalAnd": np.logical_and, "LogicalOr": np.logical_or,
    "LogicalNot": np.logical_not,
}  # fmt: skip


def is_scalar(value: Any) -> bool:
    """Whether a constant is one number."""
    return isinstance(value, bool | int | float) or (isinstance(value, np.ndarray) and value.ndim == 0)


def scalar_result(operator: str, operands: Sequence[Any]) -> np.ndarray | None:
    """Compute an operator of known scalars, or return None if it is unknown here."""
    if operator == "Cast" and len(operands) == 2:
        try:
            return np.asarray(operands[0]).astype(dtype_of_code(operands[1]).numpy)
        except KeyError:
            return None
    function = _RESULTS.get(OTHER_NAMES.get(operator, operator))
    if function is None or len(operands) != getattr(function, "nin", 0):
        return None
    try:
        with np.errstate(all="ignore"):
            return np.asarray(function(*operands))
    except (TypeError, OverflowError):
        return None


# Loops of a `.mindir` file: MindSpore writes a loop as graphs that call each other as their last step.
#
# There are three of `while i < n: x = f(x)`: the head computes `i < n` and chooses between the body, whose last step
# calls the head with the next values, and the graph after the loop.


Graphs = Mapping[str, MindirGraph]


@dataclass(frozen=True)
class TailCall:
    """A call that is the last step of a graph, or one of two if it chooses. inputs: as the caller names them."""

    graph: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class MindirLoop:
    """A loop around a graph, its head.

    members: graphs of an iteration, the head too. exits: graphs after the loop, in order. stands: of each of them and
    of the members, for each input the number of the head's input whose value in this iteration it has, or None. fixed:
    numbers of the head's inputs that no iteration changes. again: whether any iteration calls the head.
    """

    head: str
    members: frozenset[str]
    exits: tuple[str, ...]
    stands: Mapping[str, tuple[int | None, ...]]
    fixed: frozenset[int]
    again: bool


def last_call(graph: MindirGraph) -> str:
    """Return the name of the node that calls a graph as the last step; "" if a graph ends otherwise."""
    nodes = {node.name: node for node in graph.nodes}
    name = graph.outputs[0] if len(graph.outputs) == 1 else ""
    seen = set[str]()
    while name in nodes and name not in seen:
        seen.add(name)
        node = nodes[name]
        if node.operator == CALL:
            return name
        if node.operator not in ORDER or not node.inputs:
            return ""
        name = node.inputs[0]
    return ""


def tails_of(graph: MindirGraph, graphs: Graphs) -> tuple[TailCall, ...]:
    """Return the calls of a graph's last step: one, two if it chooses, nothing if it ends otherwise."""
    name = last_call(graph)
    if not name:
        return ()
    nodes = {node.name: node for node in graph.nodes}

    def called(callee: str, behind: tuple[str, ...], depth: int = 0) -> tuple[TailCall, ...]:
        if callee in graphs and callee not in nodes:
            return (TailCall(callee, behind),)
        node = nodes.get(callee)
        if node is None or depth > len(nodes):
            return ()
        if node.operator == "Partial" and node.inputs:
            return called(node.inputs[0], (*node.inputs[1:], *behind), depth + 1)
        if node.operator == "Switch" and len(node.inputs) == 3:
            return tuple(tail for each in node.inputs[1:] for tail in called(each, behind, depth + 1))
        return ()

    callee, *behind = nodes[name].inputs
    return called(callee, tuple(behind))


def loop_of(head: str, graphs: Graphs, outside: frozenset[str]) -> MindirLoop:
    """The loop around a head. outside: heads of the loops around it, which are none of its turn."""
    tails = {name: tails_of(graph, graphs) for name, graph in graphs.items()}
    ahead = _reached(head, {name: {t.graph for t in tails[name]} for name in graphs}, outside)
    callers: dict[str, set[str]] = {name: set() for name in graphs}
    for name in ahead:
        for tail in tails[name]:
            callers[tail.graph].add(name)
    members = ahead & _reached(head, callers, outside)
    exits = tuple(dict.fromkeys(
        tail.graph for name in graphs if name in members for tail in tails[name] if tail.graph not in members
    ))  # fmt: skip
    stands: dict[str, tuple[int | None, ...]] = {head: tuple(range(len(graphs[head].inputs)))}
    edges = [(name, tail) for name in graphs if name in members for tail in tails[name] if tail.graph != head]
    changed = True
    while changed:
        changed = False
        for name, tail in edges:
            if name not in stands:
                continue
            given = _given(graphs[name], stands[name], tail)
            known = stands.get(tail.graph)
            met = given if known is None else tuple(a if a == b else None for a, b in zip(known, given, strict=False))
            if met != known:
                stands[tail.graph], changed = met, True
    back = [_given(graphs[name], stands[name], t) for name in members for t in tails[name] if t.graph == head]
    numbers = range(len(graphs[head].inputs))
    fixed = frozenset(i for i in numbers if all(len(given) > i and given[i] == i for given in back))
    return MindirLoop(head, members, exits, stands, fixed, bool(back))


def _given(graph: MindirGraph, stands: tuple[int | None, ...], tail: TailCall) -> tuple[int | None, ...]:
    own = dict(zip(graph.inputs, stands, strict=False))
    return tuple(own.get(name) for name in tail.inputs)


def _reached(first: str, edges: Mapping[str, set[str]], without: frozenset[str]) -> frozenset[str]:
    found = {first}
    waiting = [first]
    while waiting:
        new = edges[waiting.pop()] - found - without
        found |= new
        waiting += sorted(new)
    return frozenset(found)


# Graphs that call each other as their last step become a loop.
#
# Every iteration begins with the head. It ends with a call of the head, which begins the next one, or of a graph after
# the loop. If the head alone chooses between the two, its condition becomes that of the loop. Else (`break`, `return`)
# the loop carries a number that says which graph comes next, -1 for another iteration, and that graph's inputs.


Steps = Generator["Steps", Any, Any]
"""Work that yields its prerequisites, and receives their results: loops are deeper than Python's stack."""
NEXT_TURN = -1
_MARK = "#order"
"""A constant for MindSpore's marks of the order of effects."""


class HasLoop(Exception):
    """A graph calls itself."""


class HasRecursion(Exception):
    """A graph calls itself before its last step."""


@dataclass(frozen=True)
class Partial:
    """A graph and its first inputs."""

    graph: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class ConditionalCall:
    """The result of one of two calls."""

    condition: str
    calls: tuple[Partial, Partial]


@dataclass(frozen=True)
class CallerGraphs:
    """Graphs in which one is called. direct: since the last choice. choosing: by choices that are not known."""

    direct: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoopIteration:
    """An iteration that is being made. given: the names of the head's inputs. carried: numbers of those that iterations
    change. slots: for each graph after the loop the numbers of its inputs that an iteration computes, if the loop
    counts by numbers; None if its condition is the head's. kept: the names of these slots before the iteration, in
    order."""

    loop: MindirLoop
    given: tuple[str, ...]
    carried: tuple[int, ...]
    slots: dict[str, tuple[int, ...]] | None = None
    kept: tuple[str, ...] = ()


# This module makes one graph of the several of a `.mindir` file: the called graph takes the place of the call.
#
# A graph is called by its name, or by that of a node which gives it some of its inputs (`Partial`) or chooses between
# two (`Switch`). Input: `%p = Partial(@a, %x)`, `%q = Partial(@b, %x)`, `%s = Switch(%c, %p, %q)`, `%r = %s()`.
# Output: the nodes of a graph that is called at once, and for a choice a node with a block for each of the two.
#
# A loop whose steps known scalars count is written out; another becomes a node (`mindir_loops`).


MOST_NODES = 2**20
"""A file may say more with few calls of calls."""
MOST_CALLS = 2**13
"""A loop may never end."""


def inlined(main: MindirGraph, others: Mapping[str, MindirGraph]) -> MindirGraph:
    """Return `main` without calls of `others`, graphs by name.

    Raises:
        HasRecursion: a graph calls itself before its last step, by a condition that is unknown before it runs.
            ValueError: a call cannot be followed.
    """
    heads: frozenset[str] = frozenset()
    while True:
        constants = dict(main.constants)
        for graph in others.values():
            constants |= graph.constants
        inlining = _Inlining(others, constants, heads)
        try:
            results = inlining.main(main)
        except HasLoop as error:
            heads |= {str(error)}
            continue
        return replace(main, constants=constants, nodes=tuple(inlining.nodes), outputs=results)


class _Inlining:
    """Makes one graph of several. nodes: of it, or of the block that is being made. constants: of all graphs, and those
    computed from scalars. heads: graphs that loops are known to be around. active: heads of the loops that are being
    made."""

    def __init__(self, graphs: Graphs, constants: dict[str, Any], heads: frozenset[str]) -> None:
        self.nodes: list[MindirNode] = []
        self.constants = constants
        self.graphs = graphs
        self.heads = heads
        self.active: tuple[str, ...] = ()
        self._calls = self._made = 0

    def main(self, graph: MindirGraph) -> tuple[str, ...]:
        """Add everything that a graph calls, and return its results."""
        waiting: list[Steps] = [self._body(graph, graph.inputs, CallerGraphs(), "")]
        given: Any = None
        while True:
            try:
                waiting.append(waiting[-1].send(given))
                given = None
            except StopIteration as ended:
                given = ended.value
                waiting.pop()
                if not waiting:
                    return given

    def new_name(self, name: str) -> str:
        self._count()
        return f"{name}#{self._made}"

    def known(self, name: str) -> Any:
        value = self.constants.get(name)
        return value if is_scalar(value) else None

    def _count(self) -> None:
        self._made += 1
        if self._made > MOST_NODES:
            raise ValueError(f"its graphs together have more than {MOST_NODES} nodes")

    def _body(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, suffix: str) -> Steps:
        names, _ = yield self._nodes(graph, given, around, suffix, "")
        return tuple(names.get(name, name) for name in graph.outputs)

    def add_nodes(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, last: str) -> Steps:
        """Add a graph's nodes except the node `last` and those that follow from it. Return (the names of its values,
        the parts and choices of calls by name)."""
        self._count_call()
        return self._nodes(graph, given, around, f"#{self._calls}", last)

    def _nodes(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, suffix: str, last: str) -> Steps:
        """As `add_nodes`. suffix: of the nodes' names here. around: the graphs in which it is called."""
        names = dict(zip(graph.inputs, given, strict=True))
        known: dict[str, Partial | ConditionalCall] = {}
        left_out = {last}
        for node in graph.nodes:
            inputs = tuple(names.get(name, name) for name in node.inputs)
            if node.name == last or not left_out.isdisjoint(node.inputs):
                left_out.add(node.name)
            elif node.operator == "Partial":
                first = self.called(known, inputs[0]) if inputs else None
                if not isinstance(first, Partial):
                    raise ValueError(f"{node.name} is a part of no graph")
                known[node.name] = Partial(first.graph, first.inputs + inputs[1:])
            elif node.operator == "Switch":
                known[node.name] = self._choice(known, node.name, inputs)
            elif node.operator == CALL:
                call = self.called(known, node.inputs[0])
                names[node.name] = yield self._result(call, inputs[1:], graph.name, around)
            else:
                names[node.name] = self._add(node, inputs, suffix)
        return names, known

    def _add(self, node: MindirNode, inputs: tuple[str, ...], suffix: str) -> str:
        """The name of a node's result; of known scalars that is a constant."""
        name = node.name + suffix
        known = [self.constants.get(each) for each in inputs]
        if node.operator in ORDER and known and is_scalar(known[0]):
            return inputs[0]
        value = scalar_result(node.operator, known) if all(map(is_scalar, known)) else None
        if value is not None or node.operator == "UpdateState":
            self.constants[name] = value
            return name
        self._count()
        self.nodes.append(replace(node, name=name, inputs=inputs))
        return name

    def _result(
        self, call: Partial | ConditionalCall, inputs: Sequence[str], caller: str, around: CallerGraphs
    ) -> Steps:
        if isinstance(call, ConditionalCall):
            condition = self.known(call.condition)
            if condition is not None:
                chosen = call.calls[0 if condition else 1]
                return (yield self.followed(chosen, inputs, CallerGraphs((), around.choosing)))
            inside = CallerGraphs((), (*around.choosing, caller))
            works = [lambda to=to: self._one(to, inputs, inside) for to in call.calls]
            (result,) = yield self.chosen(call.condition, works)
            return result
        return (yield self.followed(call, inputs, CallerGraphs((*around.direct, caller), around.choosing)))

    def _one(self, call: Partial, inputs: Sequence[str], around: CallerGraphs) -> Steps:
        return ((yield self.followed(call, inputs, around)),)

    def followed(self, call: Partial, inputs: Sequence[str], around: CallerGraphs) -> Steps:
        """Return the name of a called graph's result."""
        graph = self.graphs[call.graph]
        given = (*call.inputs, *inputs)
        if len(given) != len(graph.inputs) or len(graph.outputs) != 1:
            raise ValueError(f"graph {call.graph!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        if call.graph in self.heads:
            return (yield self.looped(call.graph, given, None, around))[0]
        if call.graph in around.direct or call.graph in around.choosing:
            raise HasLoop(call.graph)
        self._count_call()
        results = yield self._body(graph, given, around, f"#{self._calls}")
        return results[0]

    def _count_call(self) -> None:
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise ValueError(f"its graphs call each other more than {MOST_CALLS} times")

    def called(self, known: Mapping[str, Partial | ConditionalCall], name: str) -> Partial | ConditionalCall:
        if name in known:
            return known[name]
        if name in self.graphs:
            return Partial(name, ())
        raise ValueError(f"there is no graph {name!r}")

    def _choice(
        self, known: Mapping[str, Partial | ConditionalCall], name: str, inputs: Sequence[str]
    ) -> ConditionalCall:
        if len(inputs) != 3:
            raise ValueError(f"{name} does not choose between two graphs")
        one, other = (self.called(known, each) for each in inputs[1:])
        if not isinstance(one, Partial) or not isinstance(other, Partial):
            raise ValueError(f"{name} does not choose between two graphs")
        return ConditionalCall(inputs[0], (one, other))

    # Parts ----------------------------------------------------------------------------------------------

    def block(self, work: Steps) -> Steps:
        """A block with the nodes that some work adds and the names that it returns."""
        kept, self.nodes = self.nodes, []
        outputs = yield work
        made = MindirBlock(tuple(self.nodes), tuple(outputs))
        self.nodes = kept
        return made

    def chosen(self, condition: str, works: Sequence[Callable[[], Steps]]) -> Steps:
        """The names of the results of one of two works, by a condition."""
        blocks: list[MindirBlock] = []
        for work in works:
            blocks.append((yield self.block(work())))
        name = self.new_name(condition)
        self.nodes.append(MindirNode(name, CHOICE, (condition,), {"then": blocks[0], "else": blocks[1]}))
        return self._items(name, len(blocks[0].outputs))

    def constant(self, value: Any) -> str:
        name = self.new_name("constant")
        self.constants[name] = value
        return name

    def _items(self, node: str, count: int) -> tuple[str, ...]:
        return tuple(self._node(ITEM, node, self.constant(i)) for i in range(count))

    def _node(self, operator: str, *inputs: str) -> str:
        name = self.new_name(operator)
        self.nodes.append(MindirNode(name, operator, inputs, {}))
        return name

    # Loops ----------------------------------------------------------------------------------------------

    def looped(self, head: str, given: Sequence[str], outer: LoopIteration | None, around: CallerGraphs) -> Steps:
        """Add a loop and the graphs after it; return the names of its results, within an iteration of an outer loop
        those of that iteration."""
        if head in self.active:
            raise HasRecursion(head)
        loop = loop_of(head, self.graphs, frozenset(self.active))
        if not loop.again:
            raise HasRecursion(head)
        if not loop.exits:
            raise ValueError(f"graph {head!r} calls itself without end")
        kept, self.active = self.active, (*self.active, head)
        carried = tuple(i for i in range(len(given)) if i not in loop.fixed and not self._is_mark(given[i]))
        work = self._by_condition if self._chooses_alone(loop) else self._by_number
        number, final, slots = yield work(LoopIteration(loop, tuple(given), carried))
        self.active = kept
        values = [final[i] if i in final else given[i] for i in range(len(given))]
        behind = [(name, self._given_to(name, loop, values, slots)) for name in loop.exits]
        return (yield self._leave(behind, 0, number, outer, around))

    def _is_mark(self, name: str) -> bool:
        return name in self.constants and self.constants[name] is None

    def _chooses_alone(self, loop: MindirLoop) -> bool:
        """Whether the head's choice alone ends the loop, and the graph after it takes only carried values."""
        leaving = [
            (name, tail.graph) for name in loop.members for tail in tails_of(self.graphs[name], self.graphs)
            if tail.graph not in loop.members
        ]  # fmt: skip
        return (
            len(leaving) == 1
            and leaving[0][0] == loop.head
            and len(tails_of(self.graphs[loop.head], self.graphs)) == 2
            and not self._slots(loop)[loop.exits[0]]
        )

    def _slots(self, loop: MindirLoop) -> dict[str, tuple[int, ...]]:
        """For the graphs after a loop the numbers of their inputs that are none of the head's."""
        found: dict[str, tuple[int, ...]] = {}
        for name in loop.exits:
            graph = self.graphs[name]
            stands = zip(graph.inputs, loop.stands[name], strict=False)
            found[name] = tuple(i for i, (own, k) in enumerate(stands) if k is None and own not in graph.marks)
        return found

    def _by_condition(self, turn: LoopIteration) -> Steps:
        """A loop that ends by the head's condition: (nothing, the last carried values, no slots)."""
        names, inside = self._carried(turn)
        condition: MindirBlock = yield self.block(self._condition(inside))
        body: MindirBlock = yield self.block(self._turn(inside.loop.head, inside.given, inside, CallerGraphs()))
        first = tuple(turn.given[i] for i in turn.carried)
        final = self._loop(names, first, condition, body)
        return "", dict(zip(turn.carried, final, strict=True)), {}

    def _by_number(self, turn: LoopIteration) -> Steps:
        """A loop that carries which graph comes next: (the name of that number, the last values of other carried
        values, those of the slots by graph)."""
        slots = self._slots(turn.loop)
        names, inside = self._carried(turn)
        number = self.new_name("next")
        kept = tuple(self.new_name("slot") for each in slots.values() for _ in each)
        inside = LoopIteration(inside.loop, inside.given, inside.carried, slots, kept)
        condition: MindirBlock = yield self.block(self._is_below(number))
        body: MindirBlock = yield self.block(self._turn(turn.loop.head, inside.given, inside, CallerGraphs()))
        first = [self.constant(np.array(NEXT_TURN, np.int32)), *(turn.given[i] for i in turn.carried)]
        first += [self._zeros(name, i) for name, each in slots.items() for i in each]
        final = self._loop((number, *names, *kept), first, condition, body)
        count = 1 + len(turn.carried)
        left = list(final[count:])
        last = {name: {i: left.pop(0) for i in each} for name, each in slots.items()}
        return final[0], dict(zip(turn.carried, final[1:count], strict=True)), last

    def _carried(self, turn: LoopIteration) -> tuple[tuple[str, ...], LoopIteration]:
        """(the names of carried values in an iteration, the iteration with these)"""
        inside = list(turn.given)
        for i in turn.carried:
            inside[i] = self.new_name(turn.given[i])
        return tuple(inside[i] for i in turn.carried), LoopIteration(turn.loop, tuple(inside), turn.carried)

    def _loop(
        self, carried: Sequence[str], first: Sequence[str], condition: MindirBlock, body: MindirBlock
    ) -> tuple[str, ...]:
        name = self.new_name("loop")
        attributes = {"carried": tuple(carried), "condition": condition, "body": body}
        self.nodes.append(MindirNode(name, LOOP, tuple(first), attributes))
        return self._items(name, len(carried))

    def _zeros(self, name: str, number: int) -> str:
        """The value of a slot before an iteration fills it."""
        graph = self.graphs[name]
        type = graph.types.get(graph.inputs[number])
        if type is None:
            raise ValueError(f"the type of {graph.inputs[number]!r}, which a loop computes, is unknown")
        return self.constant(np.zeros(type.shape, type.dtype.numpy))

    def _is_below(self, number: str) -> Steps:
        return (self._node("Less", number, self.constant(np.array(0, np.int32))),)
        yield

    # Turns ----------------------------------------------------------------------------------------------

    def _condition(self, turn: LoopIteration) -> Steps:
        """The name of whether the head chooses another turn."""
        head = self.graphs[turn.loop.head]
        last = last_call(head)
        _, parts = yield self.add_nodes(head, turn.given, CallerGraphs(), last)
        call = self.called(parts, next(node for node in head.nodes if node.name == last).inputs[0])
        assert isinstance(call, ConditionalCall)
        stays = call.calls[0].graph in turn.loop.members
        return (call.condition if stays else self._node("LogicalNot", call.condition),)

    def _turn(self, name: str, given: Sequence[str], turn: LoopIteration, around: CallerGraphs) -> Steps:
        """Add a graph of an iteration, and the rest of the iteration; return the names of its results."""
        graph = self.graphs[name]
        if len(given) != len(graph.inputs):
            raise ValueError(f"graph {name!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        last = last_call(graph)
        names, parts = yield self.add_nodes(graph, given, around, last)
        node = next(node for node in graph.nodes if node.name == last)
        call, inputs = self.called(parts, node.inputs[0]), tuple(names.get(each, each) for each in node.inputs[1:])
        inside = CallerGraphs((*around.direct, name), around.choosing)
        if isinstance(call, Partial):
            return (yield self._ended(call.graph, (*call.inputs, *inputs), turn, inside))
        each, other = ((one.graph, (*one.inputs, *inputs)) for one in call.calls)
        if name == turn.loop.head and turn.slots is None:
            stays = each if each[0] in turn.loop.members else other
            return (yield self._ended(*stays, turn, inside))
        condition = self.known(call.condition)
        if condition is not None:
            return (yield self._ended(*(each if condition else other), turn, inside))
        works = [lambda to=to: self._ended(*to, turn, inside) for to in (each, other)]
        return (yield self.chosen(call.condition, works))

    def _ended(self, name: str, given: Sequence[str], turn: LoopIteration, around: CallerGraphs) -> Steps:
        """The names of an iteration's results if a graph is called as its last step."""
        loop = turn.loop
        if name == loop.head:
            if len(given) != len(turn.given):
                raise ValueError(f"graph {name!r} takes {len(turn.given)} inputs, not {len(given)}")
            own = tuple(given[i] for i in turn.carried)
            return own if turn.slots is None else (self.constant(np.array(NEXT_TURN, np.int32)), *own, *turn.kept)
        if name in loop.members:
            if name in self.heads:
                return (yield self.looped(name, given, turn, around))
            if name in around.direct:
                raise HasLoop(name)
            return (yield self._turn(name, given, turn, around))
        assert turn.slots is not None
        own = tuple(turn.given[i] for i in turn.carried)
        kept = list(turn.kept)
        place = 0
        for each, numbers in turn.slots.items():
            for i in numbers:
                kept[place] = given[i] if each == name else kept[place]
                place += 1
        return (self.constant(np.array(loop.exits.index(name), np.int32)), *own, *kept)

    def _given_to(
        self, name: str, loop: MindirLoop, values: Sequence[str], slots: dict[str, dict[int, str]]
    ) -> tuple[str, ...]:
        own = slots.get(name, {})
        self.constants.setdefault(_MARK, None)
        return tuple(
            own[i] if i in own else _MARK if number is None else values[number]
            for i, number in enumerate(loop.stands[name])
        )

    def _leave(
        self,
        behind: Sequence[tuple[str, tuple[str, ...]]],
        place: int,
        number: str,
        outer: LoopIteration | None,
        around: CallerGraphs,
    ) -> Steps:
        """The names of the results after a loop: of the graph in `behind`, from a place on, that the number chooses."""
        name, given = behind[place]

        def this() -> Steps:
            return (
                self._one(Partial(name, ()), given, around)
                if outer is None
                else self._ended(name, given, outer, around)
            )

        if place == len(behind) - 1:
            return (yield this())
        condition = self._node("Equal", number, self.constant(np.array(place, np.int32)))
        return (yield self.chosen(condition, [this, lambda: self._leave(behind, place + 1, number, outer, around)]))


# This module reads MindSpore's `.mindir` files, which are graphs as messages of Protocol Buffers.
#
# The format, as MindSpore 2.10 has it (`mindspore.train.mind_ir_pb2`): a model has its graph in field 7, further graphs
# in 8, its primitives in 12. A graph has nodes (1), parameters (3), inputs (5) and outputs (6); a node its inputs (1),
# its outputs (2), its operator (4), `REF::` before the name of a primitive, and attributes (5). A constant is a
# node, too.


_DTYPES = {
    1: "Float32", 2: "UInt8", 3: "Int8", 4: "UInt16", 5: "Int16", 6: "Int32", 7: "Int64", 9: "Bool", 10: "Float16",
    11: "Float64", 12: "UInt32", 13: "UInt64", 16: "BFloat16", 17: "Float64",
}  # fmt: skip
_INTEGERS, _BOOL, _STRING, _FLOAT, _DOUBLE, _TENSORS = (2, 3, 4, 5, 6, 7, 12, 13), 9, 8, 1, 11, (17, 19)
_SEQUENCES, _MONADS, _NONE = (20, 21), (23, 24), 25


def read_mindir(path: Path) -> MindirGraph:
    """Read the graph of a file.

    Raises:
        MspcError: the file is missing, cannot be read, is damaged, or has unsupported content: recursion, values in
            other files.
    """
    try:
        check_regular(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise MspcError(f"there is no file {shown_path(path)!r}") from None
    except OSError as error:
        raise MspcError(f"cannot read {shown_path(path)}: {reason_of(error)}") from None
    try:
        return _model(data)
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise MspcError(f"{shown_path(path)!r} is no complete MindIR file: {error}") from None
    except RecursionError:
        raise MspcError(f"{shown_path(path)!r} is no complete MindIR file: sequences nest too deep in it") from None
    except HasRecursion as error:
        raise MspcError(
            f"{shown_path(path)!r} has a recursion over contents of tensors, which cannot be compiled: {error} calls "
            "itself before its last step",
            notes=["loops are read: write it as `while`"],
        ) from None


class _Message:
    """A message of a file, with its fields by their numbers."""

    def __init__(self, data: bytes, part: WireField | None = None) -> None:
        if part is not None and part.kind != BYTES:
            raise ValueError(f"field {part.number} at byte {part.begin} is no message")
        self.data = data
        self.fields: dict[int, list[WireField]] = {}
        for each in fields(data, 0, len(data)) if part is None else fields(data, part.begin, part.end):
            self.fields.setdefault(each.number, []).append(each)

    def parts(self, number: int) -> list[_Message]:
        return [_Message(self.data, part) for part in self.fields.get(number, ())]

    def texts(self, number: int) -> list[str]:
        return [text(self.data, part) for part in self.fields.get(number, ())]

    def name(self, number: int) -> str:
        """The first text of a number. Raises ValueError if there is none."""
        if number not in self.fields:
            raise ValueError(f"a message lacks its field {number}")
        return text(self.data, self.fields[number][0])

    def codes(self, number: int) -> list[int]:
        return [part.value for part in self.fields.get(number, ())]

    def integers(self, number: int) -> list[int]:
        return [size for part in self.fields.get(number, ()) for size in integers(self.data, part)]

    def dtype(self) -> str:
        """The element type of a tensor, "" for one that is not read."""
        return next((_DTYPES.get(signed(code), "") for code in self.codes(2)), "")


_Primitives = dict[str, tuple[str, dict[str, Any]]]


def _model(data: bytes) -> MindirGraph:
    model = _Message(data)
    primitives: _Primitives = {}
    for each in (_Message(data, part) for part in model.fields.get(12, ()) if part.kind == BYTES):
        attributes = dict(map(_attribute, each.parts(3)))
        primitives[each.name(1)] = each.name(2), attributes
    graphs = [_graph(part, primitives)[1] for part in model.parts(7)]
    if len(graphs) != 1:
        raise ValueError(f"it has {len(graphs)} graphs")
    return inlined(graphs[0], dict(_graph(part, primitives) for part in model.parts(8)))


def _graph(part: _Message, primitives: _Primitives) -> tuple[str, MindirGraph]:
    nodes, inputs = [_node(each, primitives) for each in part.parts(1)], part.parts(5)
    name = next(iter(part.texts(2)), "")
    return name, MindirGraph(
        name,
        tuple(each.name(1) for each in inputs),
        tuple((own, key or own.rpartition(":")[2], value) for own, key, value in map(_tensor, part.parts(3))),
        {node.name: node.attributes.get("value") for node in nodes if node.operator == "Constant"},
        tuple(node for node in nodes if node.operator != "Constant"),
        tuple(each.name(1) for each in part.parts(6)),
        {each.name(1): type for each in inputs if (type := _type(each)) is not None},
        frozenset(each.name(1) for each in inputs if any(c in _MONADS for t in each.parts(5)[:1] for c in t.codes(16))),
    )


def _type(part: _Message) -> TensorType | None:
    for told in (_Message(part.data, each) for each in part.fields.get(2, ()) if each.kind == BYTES):
        sizes, dtype = told.integers(1), told.dtype()
        if dtype not in DTYPES or min(sizes, default=0) < 0 or len(sizes) > MOST_DIMENSIONS:
            return None
        return TensorType(DTYPES[dtype], tuple(sizes))
    return None


def _node(part: _Message, primitives: _Primitives) -> MindirNode:
    operator, inputs = next(iter(part.texts(4)), ""), tuple(part.texts(1))
    if not operator.startswith(REFERENCE):
        attributes = dict(map(_attribute, part.parts(5)))
        return MindirNode(part.name(2), operator, inputs, attributes)
    named = operator.removeprefix(REFERENCE)
    if named not in primitives:
        return MindirNode(part.name(2), CALL, (named, *inputs), {})
    operator, attributes = primitives[named]
    return MindirNode(part.name(2), operator, inputs, attributes)


def _attribute(part: _Message) -> tuple[str, Any]:
    """(name, value) of an attribute; of an element of a tuple the name is "". Unknown kinds are None."""
    kind = next(iter(part.codes(16)), 0)
    name = next(iter(part.texts(1)), "")
    if kind in _INTEGERS or kind == _BOOL:
        value = next(iter([*part.integers(3), *part.integers(10)]), None)
        return name, bool(value) if kind == _BOOL else value
    if kind == _STRING:
        return name, next(iter([*part.texts(5), *part.texts(11)]), None)
    if kind in (_FLOAT, _DOUBLE):
        return name, next((_number(part.data, f) for number in (2, 4, 8, 9) for f in part.fields.get(number, ())), None)
    if kind in _TENSORS:
        return name, next((_tensor(each)[2] for each in [*part.parts(6), *part.parts(12)]), None)
    if kind in _SEQUENCES:
        return name, tuple(_attribute(each)[1] for each in part.parts(17))
    return name, None


def _number(data: bytes, field: WireField) -> float:
    raw = data[field.begin : field.end]
    sized = {4: "<f", 8: "<d"}.get(len(raw))
    if field.kind not in (FOUR, EIGHT, BYTES) or sized is None:
        raise ValueError(f"field {field.number} at byte {field.begin} is no number")
    return float(struct.unpack(sized, raw)[0])


def _tensor(part: _Message) -> tuple[str, str, np.ndarray]:
    """(name, the script's name, value)"""
    sizes, dtype = part.integers(1), part.dtype()
    name, key = ("".join(part.texts(number)[-1:]) for number in (7, 13))
    raw = b"".join(part.data[each.begin : each.end] for each in part.fields.get(9, ())[-1:])
    if 12 in part.fields:
        raise ValueError("its values are in other files, which are not read")
    if dtype not in DTYPES:
        raise ValueError(f"tensor {name!r} is of an element type that is not read")
    kind: DType = DTYPES[dtype]
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {len(sizes)} dimensions; mspc reads {MOST_DIMENSIONS}")
    if min(sizes, default=0) < 0 or len(raw) != math.prod(sizes) * kind.itemsize:
        raise ValueError(f"tensor {name!r} has {len(raw)} bytes, which are no {dtype} of shape {sizes}")
    return name, key, np.frombuffer(raw, kind.numpy).reshape(sizes).copy()
