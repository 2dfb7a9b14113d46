"""Reverse mode over a graph: sums of gradients, custom gradients, and numbers of calls that draw."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, copied_node, depending, element_types
from mspc.ir.types import INT64, StackType, TensorType, TupleType
from mspc.ops.collective.base import Collective
from mspc.ops.control.custom import GradientPlaceholder, OwnGradient
from mspc.ops.control.regions import COUNT, For, TurnCount, emit_regions
from mspc.ops.control.structural import CALL, Gradient, MakeTuple, TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.math.elementwise import Identity
from mspc.ops.op import NotDifferentiable, Op
from mspc.ops.tensor.reshape import filled
from mspc.passes.base import rewrite_nodes

# Operators are visited from the last to the first, every operator's `bprop` is called once, and one AddN adds up the
# terms of a gradient, so that a sharded sum is reduced once.


Terms = dict[Value, list[Value]]
"""The terms of the gradient of each value."""
Differentiate = Callable[[Builder, Node, Sequence[Value | None], set[Value]], Sequence[Value | None]]
"""Emits the gradient of a node that runs regions: of its results' gradients and the values on the way, those of its
operands."""


def backpropagate(
    b: Builder, forward: Sequence[Node], terms: Terms, wanted: Sequence[Value], differentiate: Differentiate
) -> None:
    """Emit the backward operators of the `forward` nodes. They end at wanted values that depend on no other wanted one.

    terms: the gradients of the outputs; after the call also those of the wanted values that have any. wanted: the
    values to differentiate with respect to.
    """
    needed = depends_on(forward, wanted)
    further = depending(forward, wanted)
    parts: dict[Value, dict[int, list[Value]]] = {}
    for node in reversed(forward):
        if node not in needed or (node not in terms and node not in parts):
            continue
        b.like(node)
        b.scope = f"Gradients/{node.scope}"
        b.forward = node
        if isinstance(node.op, TupleGetItem):
            parts.setdefault(node.inputs[0], {}).setdefault(node.op.index, []).append(summed(b, terms.pop(node)))
            continue
        if isinstance(node.type, TupleType):
            mine = parts.pop(node, {})
            dout = [summed(b, mine[k]) if k in mine else None for k in range(len(node.type.elements))]
            if isinstance(node.op, MakeTuple):
                for value, grad in zip(node.inputs, dout, strict=True):
                    if grad is not None:
                        add_term(terms, value, grad)
                continue
            if node.regions:
                start = len(b.nodes)
                _note(b, node, differentiate(b, node, dout, needed), start, needed, terms)
                continue
        else:
            dout = summed(b, terms.pop(node) if node not in wanted else terms[node], node)
            if node in wanted:
                terms[node] = [dout]
                if node not in further:
                    continue
        _apply(b, node, dout, needed, terms)


def _apply(b: Builder, node: Node, dout: object, needed: set[Value], terms: Terms) -> None:
    """Ask one operator for its gradients and note them as terms of its inputs' gradients."""
    if not isinstance(node.op, Op):
        raise node.error(f"{node.label}: no operator is known under this name, so it has no gradient")
    of_integers = not any(value in needed and differentiable(value) for value in node.inputs)
    if isinstance(node.op.bprop, NotDifferentiable) and of_integers:
        return  # a comparison, a place: no step of an integer is worth anything there
    start = len(b.nodes)
    try:
        grads = node.op.gradient(b, node.inputs, node, dout)
    except Exception as error:
        if hasattr(error, "message") and getattr(error, "location", None) is None:
            raise node.error(f"{node.label}: {getattr(error, 'message', error)}") from None
        raise
    _note(b, node, grads, start, needed, terms)


def _note(b: Builder, node: Node, grads: Sequence[Value | None], start: int, needed: set[Value], terms: Terms) -> None:
    """Note the gradients of a node's inputs, made from position `start` on, as terms."""
    made = set(b.nodes[start:])
    for index, (value, grad) in enumerate(zip(node.inputs, grads, strict=True)):
        if grad is None or value not in needed:
            continue
        if isinstance(grad, Node) and grad in made:
            grad.forward_input = index
        add_term(terms, value, grad)


def depends_on(nodes: Sequence[Node], wanted: Sequence[Value]) -> set[Value]:
    """Return the wanted values and every floating-point value computed from them, or from values of another rank. If
    integers are wanted, integers computed from them count too, except through comparisons and the like, through which
    no gradient comes."""
    found: set[Value] = set(wanted)
    integers = {value for value in wanted if not differentiable(value)}
    for node in nodes:
        if integers and _hands_integers_on(node) and any(value in integers for value in node.inputs):
            integers.add(node)
            found.add(node)
        answers = isinstance(node.op, Collective) and node.op.answers
        if (answers or any(v in found for v in node.inputs)) and differentiable(node):
            found.add(node)
    return found


def differentiable(value: Value) -> bool:
    """Return whether a value has elements that something can be differentiated by."""
    return any(type.dtype.has_gradient for type in element_types(value.type))


def _hands_integers_on(node: Node) -> bool:
    """Return whether a node has results without floats, and a gradient can come through it."""
    if all(type.dtype.has_gradient for type in element_types(node.type)):
        return False
    if isinstance(node.op, MakeTuple | TupleGetItem) or node.regions:
        return True
    return not (isinstance(node.op, Op) and isinstance(node.op.bprop, NotDifferentiable))


def add_term(terms: Terms, value: Value, grad: Value) -> None:
    """Note a term of the gradient of a value; a constant has none."""
    if not isinstance(value, Constant):
        terms.setdefault(value, []).append(grad)


def summed(b: Builder, terms: list[Value], of: Node | None = None) -> Value:
    """Return the sum of the terms of one gradient, that of the result of `of` if it is known."""
    if len(terms) == 1:
        return terms[0]
    if any(isinstance(term.type, StackType) for term in terms):
        total = sum_of_stacks(b, terms)
    else:
        forward, b.forward = b.forward, of
        total = b.emit(AddN(), *terms)
        b.forward = forward
    terms[:] = [total]
    return total


# Sums and zeros of stacks (`StackType`) are made by a loop over their entries.


def sum_of_stacks(b: Builder, terms: Sequence[Value]) -> Value:
    """Return the stack of the sums of the entries, turn by turn. Some of the terms may be tensors, of loops whose turns
    are known, with an entry a turn along the first dimension: then so is the sum."""
    body = _body("sum_of_stacks", [_entry_type(term) for term in terms])
    inner = _inside(b, body)
    entries = body.parameters[1:]
    deeper = isinstance(entries[0].type, StackType)
    body.results = [sum_of_stacks(inner, entries) if deeper else inner.emit(AddN(), *entries)]
    known = [term.shape[0] for term in terms if not isinstance(term.type, StackType)]
    if known:
        made = emit_regions(b, For(scanned=len(terms), stacked=1, turns=known[0]), terms, [body])
        return b.emit(TupleGetItem(0), made)
    return _for_all(b, b.emit(TurnCount(), terms[0]), terms, body)


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of a value's type; of a stack as many."""
    if not isinstance(value.type, StackType):
        return filled(b, 0.0, value.tensor_type)
    body = _body("zeros_of_stack", [value.type.entry])
    body.results = [zeros_like(_inside(b, body), body.parameters[1])]
    return _for_all(b, b.emit(TurnCount(), value), [value], body)


def placeholder(b: Builder, type: TensorType) -> Value:
    """Something of a type that nobody is going to read, and that takes no memory."""
    if not isinstance(type, StackType):
        return filled(b, 0.0, type)
    body = _body("empty_stack", [])
    body.results = [placeholder(_inside(b, body), type.entry)]
    return _for_all(b, Constant(0, INT64), [], body)


def _entry_type(value: Value) -> TensorType:
    type = value.tensor_type
    return type.entry if isinstance(type, StackType) else type.with_shape(type.shape[1:])


def _body(name: str, entries: Sequence[TensorType]) -> Graph:
    body = Graph(name)
    body.parameters = [Parameter("turn", COUNT), *(Parameter(f"entry_{i}", type) for i, type in enumerate(entries))]
    body.returns_tuple = True
    return body


def _inside(b: Builder, body: Graph) -> Builder:
    inner = Builder(body)
    inner.scope, inner.frames, inner.phase = b.scope, b.frames, b.phase
    return inner


def _for_all(b: Builder, count: Value, stacks: Sequence[Value], body: Graph) -> Node:
    made = emit_regions(b, For(scanned=len(stacks), stacked=1), [count, *stacks], [body])
    return b.emit(TupleGetItem(0), made)


def drop_own_gradients(graph: Graph) -> bool:
    """Replace each OwnGradient by its results, and drop the nodes computed from placeholders; return whether there was
    any."""
    gone: set[Value] = set()

    def visit(_: Builder, node: Node) -> Sequence[Value] | None:
        if isinstance(node.op, GradientPlaceholder | OwnGradient) or any(value in gone for value in node.inputs):
            gone.add(node)
        return node.inputs if isinstance(node.op, OwnGradient) else None

    rewrite_nodes(graph, visit)
    graph.nodes = [node for node in graph.nodes if node not in gone]
    return bool(gone)


def number_calls(program: Graph) -> bool:
    """Number those that have no numbers yet, on from the highest; says whether there were any."""
    graphs = program.graphs()
    runners: dict[Graph, list[Node]] = {}
    for graph in graphs:
        for node in graph.nodes:
            for region in node.regions:
                runners.setdefault(region, []).append(node)
    found = [node for graph in graphs for node in graph.nodes if node.regions]
    highest = max((int(node.attrs.get(CALL, 0)) for node in found), default=0)
    changed = False
    for node in found:
        if CALL not in node.attrs and any(len(runners[region]) > 1 and _draws(region) for region in node.regions):
            highest += 1
            node.attrs[CALL] = highest
            changed = True
    return changed


def _draws(region: Graph) -> bool:
    return any(isinstance(node.op, Op) and node.op.draws for node in region.all_nodes())


def keep_earlier_values(graph: Graph) -> None:
    """Give every operator on the way of a gradient its own value of a parameter that is changed after it and before the
    request."""
    updated = updated_parameters(graph)
    changes: dict[Value, list[int]] = {}
    wanted: dict[int, dict[Value, None]] = {}
    for number, node in enumerate(graph.nodes):
        if isinstance(node.op, Gradient) and changes:
            for early, read in _early_reads(graph.nodes[:number], node, changes).items():
                wanted.setdefault(early, {}).update(read)
        for parameter in updated.get(number, ()):
            changes.setdefault(parameter, []).append(number)
    if not wanted:
        return
    nodes: list[Node] = []
    copies: dict[tuple[Value, int], Node] = {}
    for number, node in enumerate(graph.nodes):
        for read in wanted.get(number, ()):
            kept: dict[Value, Value] = {}
            for parameter in _stack_entries(read):
                version = parameter, bisect_right(changes.get(parameter, ()), number)
                if version not in copies:
                    copies[version] = _copy(parameter, node)
                    nodes.append(copies[version])
                kept[parameter] = copies[version]
            if isinstance(read, Node):  # a stack of parameters, which others overwrite through it
                kept[read] = copied_node(read, [kept[parameter] for parameter in read.inputs])
                nodes.append(kept[read])  # type: ignore[arg-type]  # the copy of a node
            node.inputs = [kept[read] if value is read else value for value in node.inputs]
        nodes.append(node)
    graph.nodes = nodes


def keep_overwritten(region: Graph, overwritten: Collection[Value], readers: Collection[Value]) -> None:
    """Give the nodes of a region that are among `readers` their own values of the parameters that the region
    overwrites: its gradient runs when all of it has run."""
    nodes: list[Node] = []
    copies: dict[Value, Node] = {}
    for node in region.nodes:
        written = {node.inputs[operand] for operand in node.op.mutates}
        for value in dict.fromkeys(node.inputs) if node in readers else ():
            if value not in overwritten or value in written:
                continue
            if value not in copies:
                copies[value] = _copy(value, node)
                nodes.append(copies[value])
            node.inputs = [copies[value] if operand is value else operand for operand in node.inputs]
        nodes.append(node)
        for value in written:
            copies.pop(value, None)
    region.nodes = nodes


def _copy(value: Value, reader: Node) -> Node:
    return Node(Identity(), [value], value.type, "", "", reader.scope, reader.frames, reader.phase)


def _stack_entries(value: Value) -> Sequence[Value]:
    """Return a parameter, or those that are the entries of a stack."""
    if isinstance(value, Parameter):
        return (value,)
    if not isinstance(value, Node) or not isinstance(value.type, StackType):
        return ()
    return value.inputs if all(isinstance(entry, Parameter) for entry in value.inputs) else ()


def _early_reads(nodes: list[Node], request: Node, changes: dict[Value, list[int]]) -> dict[int, dict[Value, None]]:
    """Return by position the parameters, and stacks of parameters, that a node reads before they are changed, for nodes
    that the results come from."""
    found: dict[int, dict[Value, None]] = {}
    ancestors: set[Value] = set(request.inputs)
    for number in range(len(nodes) - 1, -1, -1):
        node = nodes[number]
        if node not in ancestors:
            continue
        ancestors.update(node.inputs)
        if node.op.mutates and not node.op.updates_aside and not node.regions:
            continue
        if _stack_entries(node):
            continue  # who reads the stack reads them
        written = {node.inputs[operand] for operand in node.op.mutates}
        read = [value for value in node.inputs if value not in written]
        early = dict.fromkeys(v for v in read if any(changes.get(p, [-1])[-1] > number for p in _stack_entries(v)))
        if early:
            found[number] = early
    return found
