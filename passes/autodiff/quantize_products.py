"""Quantizes the matmuls of linear layers, forward and backward, to Float8, if the header has `fp8_format`.

Input:  `%3 = MatMul(%2, %w)`, and in the backward graph `%8 = MatMul(%2, %7) {transpose_a: true}`
Output: `%4 = ReduceMax(Abs(%2))`, `%5 = Float8Scale(%4)`, `%6 = Quantize(%2, %5)`, the same of `%w`, and
        `%9 = ScaledMatMul(%6, %8, %5, %7)`; the backward matmul reads `%6` again

A linear layer is a matmul with a trained parameter. The last ones, and those that only read data, stay as they are
(`fp8_layers`: "all" takes them, too). With the format "hybrid" gradients become Float8E5M2, everything else
Float8E4M3. The recipes differ in the scales (`fp8_recipe`, with Megatron's names): "tensorwise" takes the largest
magnitude of the tensor of this step, "delayed" that of the last steps, which a parameter remembers; "blockwise" has a
scale for 128 x 128 weights and for 128 other elements along the sum, "mxfp8" a power of two for 32 elements.

A magnitude is taken over the global tensor: sharding makes its parts partial maxima, and a Redistribute of these an
AllReduce. Scales are equal on all ranks, so a Redistribute of a quantized tensor moves 8 bits per element. In data
parallel mode each rank has its own graph, and scales for its own rows.
"""

from __future__ import annotations

from typing import Any, cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import STAGE, Builder, Graph, Node, Parameter, Value, depending
from mspc.ir.types import FLOAT8_E4M3, FLOAT8_E5M2, DType
from mspc.ops.control.structural import is_constraint
from mspc.ops.math.elementwise import Abs
from mspc.ops.math.float8 import Float8Scale, Quantize, ScaledMatMul, block_dims, fits
from mspc.ops.math.matmul import BatchMatMul, MatMul
from mspc.ops.math.reduce import ReduceMax
from mspc.ops.optim.optimizer import Assign
from mspc.ops.tensor.moving import Concat, Stack, Transpose
from mspc.ops.tensor.reshape import Cast, Reshape, filled
from mspc.ops.tensor.slicing import StridedSlice
from mspc.passes.base import GLOBAL, Pass

HISTORY = "fp8_amax_history"
"""Name of the parameter with the magnitudes of the last steps, [steps, tensors], newest first."""
STEPS = 16
"""Number of steps that it remembers."""
TENSORS = 3
"""Number of tensors of a layer that are quantized: both operands and the gradient."""
_MARKS = ("recompute", "strategy_gen_mode", "gathers_again", STAGE)
_Key = tuple[Value, int, DType, tuple[int, ...]]


class QuantizeProducts(Pass):
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        if not graph.attrs.get("fp8_format"):
            return False
        layers = set(linear_layers(graph))
        quantizer = _Quantizer(graph)
        for node in graph.nodes:
            layer = node if node in layers else node.forward
            if layer in layers and type(node.op) in (MatMul, BatchMatMul):
                quantizer.quantize(node)
            quantizer.b.nodes.append(node)
        quantizer.remember()
        graph.nodes = quantizer.b.nodes
        return bool(quantizer.made)


def linear_layers(graph: Graph) -> list[Node]:
    """Return the forward matmuls that are to be quantized, in order."""
    found = [node for node in graph.nodes if node.phase == "forward" and _is_linear(node)]
    if graph.attrs.get("fp8_layers") == "all":
        return found
    nodes = [node for node in graph.nodes if node.phase == "forward"]
    trained = depending(nodes, [p for p in graph.parameters if p.kind == "parameter"])
    leading: set[Value] = set()
    inner: set[Node] = set()
    linear = set(found)
    for node in reversed(nodes):
        if node in leading and node in linear:
            inner.add(node)
        if node in leading or node in linear:
            leading.update(node.inputs)
    return [node for node in found if node in inner and node.inputs[0] in trained]


def _is_linear(node: Node) -> bool:
    if type(node.op) not in (MatMul, BatchMatMul) or len(node.inputs[1].shape) != 2:
        return False
    return _is_weight(node.inputs[1]) and node.tensor_type.dtype.is_float and not _is_weight(node.inputs[0])


def _is_weight(value: Value) -> bool:
    while isinstance(value, Node) and (isinstance(value.op, Cast | Transpose | Reshape) or is_constraint(value)):
        value = value.inputs[0]
    return isinstance(value, Parameter) and value.kind == "parameter" and value.trainable


def _in_blocks(value: Value, block: tuple[int, ...], entry: Any) -> bool:
    """Whether slices that a user asks for consist of whole blocks, or a dimension is one block."""
    if not block or not isinstance(entry, tuple):
        return True
    counts = (n // own for n, own in zip(value.shape, block, strict=True))
    return all(count == 1 or count % slices == 0 for count, slices in zip(counts, entry, strict=False))


def _of_scale(scale: Value, entry: Any) -> Any:
    """Return the strategy of a scale by that of its operand."""
    if not scale.shape or not isinstance(entry, tuple):
        return entry if scale.shape else ()
    return tuple(1 if n == 1 else slices for n, slices in zip(scale.shape, entry, strict=True))


class _Quantizer:
    """made: quantized values with their scales, by value, its last update, type and block."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.b = graph, Builder(graph, [])
        self.format, self.recipe = str(graph.attrs["fp8_format"]), str(graph.attrs.get("fp8_recipe", "tensorwise"))
        self.updates = Updates(graph)
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.made: dict[_Key, tuple[Value, Value]] = {}
        self.magnitudes: list[Value] = []
        self.scales: dict[DType, Value] = {}

    def quantize(self, node: Node) -> None:
        """Let a matmul read quantized operands, if both consist of whole blocks."""
        op = cast(MatMul, node.op)
        sides = list(zip(node.inputs, (not op.transpose_a, op.transpose_b), strict=True))
        blocks = [self._block(value, along_last) for value, along_last in sides]
        entries = node.in_strategy or ((),) * len(blocks)
        given = zip(node.inputs, blocks, entries, strict=True)
        if not all(fits(value.shape, block) and _in_blocks(value, block, entry) for value, block, entry in given):
            return
        pairs = [self._quantized(value, block, node) for (value, _), block in zip(sides, blocks, strict=True)]
        if node.in_strategy is not None:
            scales = (_of_scale(scale, entry) for (_, scale), entry in zip(pairs, entries, strict=True))
            node.in_strategy = (*entries, *scales)
        node.op = ScaledMatMul(op.transpose_a, op.transpose_b, node.tensor_type.dtype)
        node.inputs = [*(q for q, _ in pairs), *(scale for _, scale in pairs)]

    def _block(self, value: Value, along_last: bool) -> tuple[int, ...]:
        """Return the shape of the blocks that have a scale each, () for one scale. along_last: whether the matmul sums
        along the last dimension."""
        if self.recipe in ("tensorwise", "delayed"):
            return ()
        if self.recipe == "blockwise" and _is_weight(value):
            return 128, 128
        size = 32 if self.recipe == "mxfp8" else 128
        return (1, size) if along_last else (size, 1)

    def _quantized(self, value: Value, block: tuple[int, ...], reader: Node) -> tuple[Value, Value]:
        is_gradient = isinstance(value, Node) and value.phase == "backward"
        dtype = FLOAT8_E5M2 if is_gradient and self.format == "hybrid" else FLOAT8_E4M3
        key = value, self.updates.last_before((value,), self.position[reader]), dtype, block
        if key not in self.made:
            b, begin = self.b.like(reader), len(self.b.nodes)
            b.phase = reader.phase
            self.made[key] = self._emit(value, block, dtype)
            for node in b.nodes[begin:]:
                node.attrs |= {name: reader.attrs[name] for name in _MARKS if name in reader.attrs}
        return self.made[key]

    def _emit(self, value: Value, block: tuple[int, ...], dtype: DType) -> tuple[Value, Value]:
        b = self.b
        blocks = b.emit(Reshape(block_dims(value.shape, block)), value) if block else value
        axes = tuple(range(1, len(blocks.shape), 2)) if block else ()
        amax: Value = b.emit(ReduceMax(bool(block), axes), b.emit(Abs(), blocks))
        if self.recipe == "delayed" and len(self.magnitudes) < self.graph.parameter(HISTORY).shape[1]:
            scale = self._earlier(len(self.magnitudes), dtype)
            self.magnitudes.append(amax)
        else:
            scale = b.emit(Float8Scale(dtype, self.recipe == "mxfp8"), amax)
        quantized = b.emit(Quantize(dtype), blocks, scale)
        if not block:
            return quantized, scale
        counts = tuple(n // own for n, own in zip(value.shape, block, strict=True))
        return b.emit(Reshape(value.shape), quantized), b.emit(Reshape(counts), scale)

    def _earlier(self, number: int, dtype: DType) -> Value:
        """Return the scale of a tensor by its magnitudes in earlier steps."""
        b = self.b
        if dtype not in self.scales:
            largest = b.emit(ReduceMax(False, (0,)), self.graph.parameter(HISTORY))
            self.scales[dtype] = b.emit(Float8Scale(dtype), largest)
        part = b.emit(StridedSlice(begin=(number,), end=(number + 1,), strides=(1,)), self.scales[dtype])
        return b.emit(Reshape(()), part)

    def remember(self) -> None:
        """Put the magnitudes of a training step in front of those of the steps before."""
        if not self.magnitudes or not any(node.phase == "backward" for node in self.b.nodes):
            return
        b, history = self.b, self.graph.parameter(HISTORY)
        steps, count = history.shape
        b.scope, b.phase = "Default", "update"
        dtype = history.tensor_type.dtype
        row: Value = b.emit(Stack(0), *(b.emit(Cast(dst_type=dtype), amax) for amax in self.magnitudes))
        if count > len(self.magnitudes):
            rest = history.tensor_type.with_shape((count - len(self.magnitudes),))
            row = b.emit(Concat(0), row, filled(b, 0.0, rest))
        kept = b.emit(StridedSlice(begin=(0, 0), end=(steps - 1, count), strides=(1, 1)), history)
        b.emit(Assign(), history, b.emit(Concat(0), b.emit(Reshape((1, count)), row), kept))
