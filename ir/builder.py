"""The builder of nodes: it infers the type, fills in scope and source spans, and appends the node to a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.graph import Constant, Graph, Node, OpLike, Value, element_types
from mspc.ir.types import BOOL, DType, TensorType, Type, is_too_large


class TypedOp(OpLike, Protocol):
    """An operator that can infer the type of its result."""

    def infer(self, *types: TensorType) -> Type: ...


class Builder:
    """Emitter of nodes into `nodes`, a list in run order (a graph's own list, or one that a pass is building).

    Every emitted node gets the current `scope`, `frames`, `phase` and `forward`.
    """

    def __init__(self, graph: Graph, nodes: list[Node] | None = None) -> None:
        self.graph = graph
        self.nodes = graph.nodes if nodes is None else nodes
        self.scope = "Default"
        self.frames: Frames = ()
        self.phase = "forward"
        self.forward: Node | None = None
        self.inner_gradients: dict[Value, Any] = {}
        """Gradients that an OwnGradient differentiated earlier makes for another one (see `OwnGradient.inner`)."""

    def emit(self, op: TypedOp, *inputs: Value, name: str = "", instance: str = "") -> Node:
        """Append `op(*inputs)`. Raise MspcError if the operands' types do not fit; its place is the current source
        line."""
        try:
            types = [value.type for value in inputs]
            refuse_kinds(op, types)
            type = op.infer(*types)  # type: ignore[misc]  # tuples reach structural operators only
            refuse_large(op.name, type)
        except MspcError as error:
            if error.location is not None:
                raise
            message = error.message
            if instance and message.startswith(op.name):
                message = f"{op.name} '{instance}'{message[len(op.name) :]}"
            raise MspcError(message, notes=error.notes, frames=self.frames, kind=error.kind or ValueError) from None
        node = Node(op, inputs, type, name, instance, self.scope, self.frames, self.phase)
        node.forward = self.forward
        self.nodes.append(node)
        return node

    def constant(self, value: Any, dtype: DType) -> Constant:
        """Return a scalar (or small array) constant of an element type."""
        return Constant(value, dtype)

    def like(self, node: Node) -> Builder:
        """Take scope and source spans from `node` for the next nodes. Return the builder."""
        self.scope = node.scope
        self.frames = node.frames
        return self


def refuse_kinds(op: TypedOp, types: Sequence[Type], takes_complex: bool = False) -> None:
    """Raise MspcError if an operator that takes only numbers gets a Bool operand, or one that takes only real numbers a
    complex operand. takes_complex: this one takes complex numbers here, whatever it says."""
    bools, complexes = getattr(op, "takes_bool", True), takes_complex or getattr(op, "takes_complex", False)
    if bools and complexes:
        return  # an entry of the tuple of all gradients has as many types to look at as there are parameters
    for index, type in enumerate(types):
        for element in element_types(type):
            if element.dtype == BOOL and not bools:
                raise MspcError(f"{op.name}: input {index} is Bool, not a number",
                                notes=["cast it first: x.astype(mindspore.int32)"], kind=TypeError)  # fmt: skip
            if element.dtype.is_complex and not complexes:
                raise MspcError(f"{op.name}: input {index} is {type}; the operator takes no complex numbers",
                                notes=["take its parts with ops.real and ops.imag"], kind=TypeError)  # fmt: skip


def refuse_large(name: str, type: Type) -> None:
    """Raise MspcError if a value has a tensor that is too large for any text or memory."""
    for element in element_types(type):
        if is_too_large(element.shape):
            raise MspcError(f"{name}: {element} has more elements than any memory holds")
