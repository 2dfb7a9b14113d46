"""Finds attention that is written out: from its last product back to query, key, value and mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Value
from mspc.ir.iterative import iterative
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, Div, Mul, RealDiv, Select
from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.nn.attention_base import HEADS_BEHIND
from mspc.ops.nn.softmax import Softmax
from mspc.ops.random.dropout import Dropout
from mspc.ops.tensor.creation import MaskedFill
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, ExpandDims, Reshape
from mspc.passes.fusion.attention_masks import causal_mode, elements_of, every_row_holds, may_be_infinite, may_hide

# What is added to the scores of attention that is written out, one by one or as a sum; one term may be a causal mask.
#
# Input:  `%1 = Add(%scores, %bias)`, `%2 = Add(%1, %future)`, or `%1 = Add(%bias, %future)`, `%2 = Add(%scores, %1)`
# Output: %bias, and `sparse_mode: 2`; for other addends `Add(%bias, %padding)`


MAX_TERMS = 64
"""Terms into which a sum is taken apart; a value that is added to itself again and again has more than fit a list."""


@dataclass
class Addends:
    """The tensors added to the scores of one attention.

    values: in their order. behind_mask: some are added after the mask. total: their sum, if any, in the widest of their
    types. made: nodes to create for it.
    """

    values: list[Value] = field(default_factory=list["Value"])
    behind_mask: bool = False
    total: Value | None = None
    made: list[Node] = field(default_factory=list["Node"])

    def take_future(self, scores: tuple[int, ...], hides: Callable[[Any, Any], bool]) -> int:
        """Remove a value, or a term of one, that is a causal mask, and return its `sparse_mode`.

        0 if there is none, or if another may hide keys too: a row could then have no key.
        """
        for terms in (self.values, [term for value in self.values for term in _terms(value)]):
            for index, term in enumerate(terms):
                others = [*terms[:index], *terms[index + 1 :]]
                mode = causal_mode(term, scores, hides)
                if mode and not any(map(may_hide, others)):
                    self.values = others
                    return mode
        return 0

    def add_up(self, like: Node) -> None:
        """Find the sum, at the lines of `like`."""
        for value in self.values:
            if self.total is None:
                self.total = value
                continue
            pair = (self.total, value)
            dtype = max((v.tensor_type.dtype for v in pair), key=lambda dtype: dtype.itemsize)
            shape = np.broadcast_shapes(*(v.shape for v in pair))
            self.total = self._make(Add(), [self._cast(v, dtype, like) for v in pair], TensorType(dtype, shape), like)

    def _cast(self, value: Value, dtype: DType, like: Node) -> Value:
        if value.tensor_type.dtype == dtype:
            return value
        return self._make(Cast(dtype), [value], TensorType(dtype, value.shape), like)

    def _make(self, op: Add | Cast, inputs: Sequence[Value], type: TensorType, like: Node) -> Node:
        self.made.append(Node(op, inputs, type, scope=like.scope, frames=like.frames))
        return self.made[-1]


@iterative
def _terms(value: Value) -> Generator[Any, list[Value], list[Value]]:
    if not isinstance(value, Node) or not isinstance(value.op, Add) or value.in_strategy is not None:
        return [value]
    found: list[Value] = []
    for operand in value.inputs:
        found += yield (operand,)
    return found if len(found) <= MAX_TERMS else [value]


# Finds what an attention that is written out reads: an operand of a product without the transposes, casts, factors and
# repeated heads between them.
#
# Input:  `%1 = Transpose(%k) {perm: (0, 2, 1, 3)}`, `%2 = RepeatInterleaveInt(%1) {repeats: 4, dim: 1}`,
#         `%3 = Cast(%2) {dst_type: BFloat16}`, `%4 = Transpose(%3) {perm: (0, 1, 3, 2)}` as the key of a product
# Output: %k [batch, sequence, heads, depth], each of whose heads serves 4 of the query, to be cast to BFloat16


BATCH, HEADS, SEQUENCE, DEPTH = "batch", "heads", "sequence", "depth"
Roles = tuple[str, ...]
"""The role of each dimension of an operand."""
LAYOUTS: dict[str, Roles] = {
    "BNSD": (BATCH, HEADS, SEQUENCE, DEPTH), "BSND": (BATCH, SEQUENCE, HEADS, DEPTH), "BSH": (BATCH, SEQUENCE, DEPTH),
}  # fmt: skip
"""Roles of the operator's layouts; the last one with one head, whose depth is the hidden dimension."""


@dataclass(frozen=True)
class OperandSource:
    """A value from which an operand of a matmul is computed.

    roles: of its dimensions. passed: the nodes between, last first, each with the roles of its input. cast: the type
    still to cast to, None for its own. factor: still to multiply by. group: heads of the query for each of its heads.
    """

    value: Value
    roles: Roles
    passed: tuple[tuple[Node, Roles], ...] = ()
    cast: DType | None = None
    factor: float = 1.0
    group: int = 1


def roles_of(rank: int, transposed: bool) -> Roles:
    """Return the roles of a matmul operand of `rank` dimensions. transposed: the depth comes before the sequence."""
    ends = (DEPTH, SEQUENCE) if transposed else (SEQUENCE, DEPTH)
    return (BATCH, HEADS, *ends) if rank == 4 else (BATCH, *ends)


def sources_of(operand: Value, roles: Roles, scaled: bool) -> Iterator[OperandSource]:
    """Yield the operand, then the values it is computed from, nearest first. scaled: also through factors."""
    at: OperandSource | None = OperandSource(operand, roles)
    while at is not None:
        yield at
        at = _before(at, scaled)


def source_in(sources: Sequence[OperandSource], layout: str, group: int) -> OperandSource | None:
    """Return the farthest source in `layout` with `group` heads of the query for each of its own, or None."""
    found = [s for s in sources if s.roles == LAYOUTS[layout] and s.group == group]
    return found[-1] if found else None


def _before(at: OperandSource, scaled: bool) -> OperandSource | None:
    node = at.value
    if not isinstance(node, Node) or node.out_strategy is not None:
        return None
    if isinstance(node.op, Cast):
        floats = node.tensor_type.dtype.is_float and node.inputs[0].tensor_type.dtype.is_float
        again = at.cast is not None  # what the first one rounds away stays away
        if again or not floats:
            return None
        return _through(at, node, node.inputs[0], at.roles, cast=node.tensor_type.dtype)
    if isinstance(node.op, Transpose):
        order = node.op.order(len(at.roles))
        before = tuple(at.roles[order.index(d)] for d in range(len(order)))
        return _through(at, node, node.inputs[0], before)
    factor, rest = factor_of(node)
    if scaled and rest is not None and rest.tensor_type == node.tensor_type:
        return _through(at, node, rest, at.roles, factor=at.factor * factor)
    return _once(at, node)


def _through(at: OperandSource, node: Node, source: Value, roles: Roles, **changes: Any) -> OperandSource:
    return replace(at, value=source, roles=roles, passed=(*at.passed, (node, roles)), **changes)


def _once(at: OperandSource, node: Node) -> OperandSource | None:
    """Return the source with every head once if `node` repeats heads, or None."""
    roles = at.roles
    if HEADS not in roles:
        return None
    axis = roles.index(HEADS)
    source = node.inputs[0]
    if isinstance(node.op, RepeatInterleaveInt):
        same = node.op.dim is not None and node.op.dim % len(roles) == axis
        return _through(at, node, source, roles, group=at.group * node.op.repeats) if same else None
    # (.., heads, ..) as (.., heads, 1, ..), repeated there, as (.., heads * group, ..).
    if not isinstance(node.op, Reshape) or not isinstance(source, Node) or not isinstance(source.op, BroadcastTo):
        return None
    apart = source.inputs[0]
    if not isinstance(apart, Node) or not isinstance(apart.op, Reshape | ExpandDims):
        return None
    once = apart.inputs[0]
    heads, group = (*once.shape, 0)[axis], math.prod(node.shape) // max(1, math.prod(once.shape))
    ahead, behind = node.shape[:axis], node.shape[axis + 1 :]
    wanted = ((*ahead, heads, *behind), (*ahead, heads, 1, *behind), (*ahead, heads, group, *behind))
    if (once.shape, apart.shape, source.shape) != wanted:
        return None
    parted = (*roles[: axis + 1], "", *roles[axis + 1 :])
    passed = (*at.passed, (node, parted), (source, parted), (apart, roles))
    return replace(at, value=once, passed=passed, group=at.group * group)


def factor_of(node: Node) -> tuple[float, Value | None]:
    """Return (factor, scaled value) of a multiplication by one number, (1.0, None) for anything else."""
    if not isinstance(node.op, Mul | Div | RealDiv):
        return 1.0, None
    left, right = node.inputs
    number = _number(right) if left.shape == node.shape else None
    if number is not None:
        return (number if isinstance(node.op, Mul) else 1 / number if number else math.inf), left
    number = _number(left) if isinstance(node.op, Mul) and right.shape == node.shape else None
    return (1.0, None) if number is None else (number, right)


def _number(value: Value) -> float | None:
    """Return the number held by a one-element value made of constants, or None."""
    if not isinstance(value, Constant | Node) or not value.tensor_type.dtype.is_float or math.prod(value.shape) != 1:
        return None
    found = elements_of(value)
    return None if found is None else float(np.asarray(found).item())


MASKED = -1e4
"""A score replaced by this number or a lower one has no weight after the softmax."""
_SHARDED_AS = {BATCH: "b", HEADS: "n", SEQUENCE: "s"}
Users = Mapping[Value, Sequence[tuple[Node, int]]]
Mesh = tuple[tuple[int, ...], tuple[str, ...], int] | None


class _NoMatch(Exception):
    """The operators are not an attention, or one that must stay as it is."""


@dataclass
class AttentionMatch:
    """An attention found in the graph.

    nodes: to remove. last: the one that the fused operator replaces. query, key, value: its operands. sparse_mode: of
    the operator, instead of a shift or a mask. added: to the scores. filled: the number the softmax sees for masked
    scores, None if no row can be masked entirely. infinite: an addend may be minus infinity in whole rows. dropout: of
    the weights. between: nodes between operands and matmuls, removed if nothing else reads them. shards: per role, the
    number of slices, or the axes of a layout. mesh: the layouts' device matrix and the rest. cast: types that query,
    key and value still have to be cast to.
    """

    nodes: list[Node]
    query: Value
    key: Value
    value: Value
    last: Node
    scale: float = 1.0
    added: Addends = field(default_factory=Addends)
    mask: Value | None = None
    inverted: bool = False
    sparse_mode: int = 0
    filled: float | None = None
    infinite: bool = False
    dropout: Dropout | None = None
    layout: str = "BNSD"
    heads: int = 1
    between: list[Node] = field(default_factory=list["Node"])
    shards: dict[str, Any] = field(default_factory=dict[str, Any])
    mesh: Mesh = None
    cast: list[DType | None] = field(default_factory=lambda: [None] * 3)


def match_attention(product: Node, users: Users, results: set[Value]) -> AttentionMatch | None:
    try:
        return _matched(product, users, results)
    except _NoMatch:
        return None


def _matched(product: Node, users: Users, results: set[Value]) -> AttentionMatch:
    """Return the attention that ends in `product`. Raises _NoMatch."""
    op = product.op
    assert isinstance(op, BatchMatMul)
    if op.transpose_a:
        raise _NoMatch

    def only_reader(value: Value) -> Node:
        if not isinstance(value, Node) or len(users.get(value, ())) != 1 or value in results:
            raise _NoMatch
        return value

    nodes = [product]
    at = only_reader(product.inputs[0])
    dropout: Dropout | None = None
    while True:
        if isinstance(at.op, Cast):
            nodes.append(at)
            at = only_reader(at.inputs[0])
        elif dropout is None and isinstance(at.op, TupleGetItem) and at.op.index == 0:
            node = only_reader(at.inputs[0])
            dropout = _dropping(node)
            nodes += (at, node)
            at = only_reader(node.inputs[0])
        else:
            break
    if not isinstance(at.op, Softmax) or at.op.axis not in (-1, (-1,), len(at.shape) - 1, (len(at.shape) - 1,)):
        raise _NoMatch
    nodes.append(at)
    softmax, at = at, only_reader(at.inputs[0])
    match = AttentionMatch(nodes, product, product, product.inputs[1], product)
    match.dropout = dropout
    while not isinstance(at.op, BatchMatMul):
        nodes.append(at)
        at = only_reader(_scores_before(at, match))
    nodes.append(at)
    if len(at.shape) not in (3, 4) or at.shape != softmax.shape:
        raise _NoMatch
    _add_strategies(match, nodes)
    _take_operands(match, at, users, results)
    _hide_future(match, at.shape)
    match.added.add_up(at)
    _take_hidden_rows(match)
    _check(match)
    return match


def _dropping(node: Node) -> Dropout:
    """Return the dropout of single weights in a graph of all ranks. Raises _NoMatch."""
    if type(node.op) is not Dropout or node.op.shape or node.op.rows or node.out_strategy is not None:
        raise _NoMatch
    return node.op


def _scores_before(node: Node, match: AttentionMatch) -> Value:
    """Return the scores before one operator between the first matmul and the softmax, and record its effect."""
    if isinstance(node.op, Cast):
        if not node.tensor_type.dtype.is_float:
            raise _NoMatch
        return node.inputs[0]
    factor, rest = factor_of(node)
    if rest is not None:
        match.scale *= factor
        return rest
    if isinstance(node.op, Add) and match.scale == 1.0:
        same_shape = [i for i in (0, 1) if node.inputs[i].shape == node.shape]
        same_shape.sort(key=lambda i: not _is_product(node.inputs[i]))
        if same_shape:
            match.added.values.insert(0, node.inputs[1 - same_shape[0]])
            match.added.behind_mask |= match.mask is None
            return node.inputs[same_shape[0]]
    if isinstance(node.op, MaskedFill | Select) and match.mask is None:
        if isinstance(node.op, MaskedFill):
            value, match.mask, masked = node.inputs
        else:
            match.mask, value, masked = node.inputs
            match.inverted = elements_of(value) is None
            if not match.inverted:
                value, masked = masked, value
        number = elements_of(masked)
        with np.errstate(over="ignore"):
            lowest = number is not None and (number * match.scale <= MASKED).all()
        if value.shape == node.shape and lowest:
            match.filled = _at_softmax(node, number, match.nodes)
            return value
    raise _NoMatch


def _at_softmax(node: Node, number: Any, nodes: Sequence[Node]) -> float:
    """Return the number the softmax sees for scores that `node` replaces by `number`; NaN if there are several."""
    number = np.asarray(number).astype(node.tensor_type.dtype.numpy)
    behind = nodes[next(i for i, n in enumerate(nodes) if isinstance(n.op, Softmax)) + 1 : -1]
    with np.errstate(over="ignore"):
        for after in reversed(behind):
            dtype = after.tensor_type.dtype.numpy
            number = (number.astype(dtype) * np.asarray(factor_of(after)[0]).astype(dtype)).astype(dtype)
    least, most = float(number.min()), float(number.max())
    return least if least == most else math.nan


def _is_product(value: Value, added: int = 2) -> bool:
    """Return True for a matmul, also scaled, cast, or with an addend."""
    while isinstance(value, Node) and isinstance(value.op, Cast | Mul | Div | RealDiv):
        value = value.inputs[isinstance(value.inputs[0], Constant)]
    if isinstance(value, Node) and isinstance(value.op, Add) and added:
        return any(_is_product(operand, added - 1) for operand in value.inputs if operand.shape == value.shape)
    return isinstance(value, Node) and isinstance(value.op, BatchMatMul)


def _take_operands(match: AttentionMatch, scores: Node, users: Users, results: set[Value]) -> None:
    """Choose the operator's layout and take the operands in it. Raises _NoMatch if none fits all of them."""
    rank, (first, last) = len(scores.shape), (scores.op, match.nodes[0].op)
    assert isinstance(first, BatchMatMul)
    assert isinstance(last, BatchMatMul)
    sides = (
        (scores.inputs[0], roles_of(rank, first.transpose_a)),
        (scores.inputs[1], roles_of(rank, not first.transpose_b)),
        (match.nodes[0].inputs[1], roles_of(rank, last.transpose_b)),
    )
    sources = [list(sources_of(operand, roles, index < 2)) for index, (operand, roles) in enumerate(sides)]
    # Without shared heads where key and value do not share theirs alike.
    groups = sorted({s.group for s in sources[1]} & {s.group for s in sources[2]}, reverse=True)
    after = _transpose_after(match.last, users, results) if rank == 4 else []
    layouts = ("BSH",) if rank == 3 else ("BSND", "BNSD") if after else ("BNSD",)
    found = (
        (layout, [source_in(s, layout, g) for s, g in zip(sources, (1, group, group), strict=True)])
        for group in groups for layout in layouts
    )  # fmt: skip
    taken = next((each for each in found if None not in each[1]), None)
    if taken is None:
        raise _NoMatch
    match.layout, operands = taken
    match.heads = scores.shape[1] if rank == 4 else 1
    for index, source in enumerate(operands):
        assert source is not None
        for node, roles in source.passed:
            known = _SHARDED_AS | ({SEQUENCE: "t"} if index else {})
            _note(match, node, 0, tuple(known.get(role, "") for role in roles))
        match.cast[index] = source.cast
        if source.group > 1 and _is_sharded(match, "n"):
            raise _NoMatch  # slices of the repeated heads need not be some of the key's own
        match.scale *= source.factor
        match.between += [node for node, _ in source.passed]
    match.query, match.key, match.value = (source.value for source in operands if source is not None)
    if match.layout == "BSND":
        for node in after:
            _note(match, node, 0, ("b", "n", "s", ""))
        match.nodes += after
        match.last = after[-1]


def _hide_future(match: AttentionMatch, scores: tuple[int, ...]) -> None:
    """Use a sparse mode instead of an addend or mask that only hides later keys from a query."""
    if match.mask is None:
        match.sparse_mode = match.added.take_future(
            scores, lambda near, far: bool(near == 0 and far <= np.asarray(MASKED).astype(far.dtype))
        )  # BFloat16 has -9984 for MASKED
    elif not match.added.values:
        match.sparse_mode = causal_mode(match.mask, scores, lambda near, far: near == match.inverted and far != near)
    if match.sparse_mode:
        match.mask, match.inverted = None, False


def _take_hidden_rows(match: AttentionMatch) -> None:
    """Record the result of rows without a key. Raises _NoMatch if the surrounding operators cannot express it."""
    shift, mask = match.added.total, match.mask
    if mask is None:
        match.filled = None
        if shift is not None and may_be_infinite(shift):
            match.infinite = True
            if not shift.shape:
                raise _NoMatch
        return
    if every_row_holds(mask, match.inverted):
        match.filled = None
    elif not mask.shape or match.filled is None or math.isnan(match.filled):
        raise _NoMatch
    # A row without a key drops some of its equal weights, too.
    if match.filled is not None and match.dropout is not None:
        raise _NoMatch
    # Where all keys are hidden by one or the other, their weights are those of the sums.
    if shift is not None and (may_hide(shift) or (match.added.behind_mask and match.filled is not None)):
        raise _NoMatch


def _transpose_after(product: Node, users: Users, results: set[Value]) -> list[Node]:
    """Return the transpose that alone reads `product`, or the cast and the transpose."""
    readers = users.get(product, ())
    if len(readers) != 1 or product in results:
        return []
    ((after, _),) = readers
    if isinstance(after.op, Transpose) and after.op.order(len(product.shape)) == HEADS_BEHIND:
        return [after]
    if isinstance(after.op, Cast) and after.tensor_type.dtype.is_float and isinstance(product.op, BatchMatMul):
        nodes = _transpose_after(after, users, results)
        return [after, *nodes] if len(nodes) == 1 else []
    return []


def _add_strategies(match: AttentionMatch, nodes: list[Node]) -> None:
    """Record how strategies of the matmuls and the nodes between them shard batch, heads and queries."""
    for node in nodes:
        if isinstance(node.op, TupleGetItem):
            continue
        for index, operand in enumerate(node.inputs):
            rank = len((operand if isinstance(node.op, Dropout) else node).shape)
            roles = _roles(operand, rank)
            if isinstance(node.op, BatchMatMul):
                queries = ("", "s") if node.op.transpose_a else ("s", "")
                roles = (*roles[:-2], *(("", "") if index else queries))
            _note(match, node, index, roles)
        if node.out_strategy is not None:
            raise _NoMatch


def _roles(value: Value, rank: int) -> Roles:
    """Return the roles of a value's dimensions, aligned right with scores or operands of `rank` dimensions."""
    roles = ("b", "n", "s", "") if rank == 4 else ("b", "s", "")
    shape = value.shape
    if len(shape) > rank:
        raise _NoMatch
    return roles[rank - len(shape) :]


def _note(match: AttentionMatch, node: Node, index: int, roles: Roles) -> None:
    """Record how the strategy of one input shards. Raises _NoMatch if strategies disagree or shard another
    dimension."""
    if node.out_strategy is not None:
        raise _NoMatch
    if node.in_strategy is None or (index >= len(node.in_strategy) and not roles):
        return
    given: Any = node.in_strategy[index] if index < len(node.in_strategy) else None
    mesh: Mesh = None
    if isinstance(given, NamedLayout):
        mesh = (given.device_matrix, given.alias_name, given.interleaved)
        given = given.tensor_map
    entry = cast("tuple[Any, ...]", given if isinstance(given, tuple) else ())
    if len(entry) != len(roles) or (match.shards and match.mesh != mesh):
        raise _NoMatch  # among others a wrong strategy, which is reported where it is
    match.mesh = mesh
    single = 1 if mesh is None else -1
    for role, count, size in zip(roles, entry, node.inputs[index].shape, strict=True):
        role = role if size > 1 else ""
        if role == "t":
            role = "" if count == single else "s"
        if (not role and count != single) or (role and match.shards.setdefault(role, count) != count):
            raise _NoMatch


def shards_queries(match: AttentionMatch) -> bool:
    """Return whether strategies shard the sequence of the queries."""
    return _is_sharded(match, "s")


def _is_sharded(match: AttentionMatch, role: str) -> bool:
    single = 1 if match.mesh is None else -1
    return match.shards.get(role, single) != single


def _check(match: AttentionMatch) -> None:
    """Raise _NoMatch if the fused operator rejects the operands, or the nodes differ in phase or attributes."""
    first = match.nodes[0]
    if any(node.phase != "forward" or node.attrs != first.attrs for node in match.nodes):
        raise _NoMatch
    for operand in (match.added.total, match.mask):
        # Three dimensions are heads, queries and keys for the operator, batch, queries and keys for a product of three.
        if operand is not None and match.layout == "BSH" and len(operand.shape) == 3 and operand.shape[0] > 1:
            raise _NoMatch
    if match.mask is not None and match.mask.tensor_type.dtype != BOOL:
        raise _NoMatch
    if not match.scale or not math.isfinite(match.scale):
        raise _NoMatch
    try:
        inferred = fused_operator(match).infer(*types_of(match))
    except MspcError:
        raise _NoMatch from None
    result = TensorType(match.nodes[0].tensor_type.dtype, match.last.shape)
    if inferred.elements[3] != result:  # type: ignore[union-attr]  # the operator gives four tensors
        raise _NoMatch


def fused_operator(match: AttentionMatch) -> FlashAttentionScore:
    dropped = match.dropout or Dropout(keep_prob=1.0)
    optional = [name for name, v in (("real_shift", match.added.total), ("attn_mask", match.mask)) if v is not None]
    return FlashAttentionScore(
        match.heads, scale_value=match.scale, input_layout=match.layout, sparse_mode=match.sparse_mode,
        optional=tuple(optional), keep_prob=dropped.keep_prob, Seed0=dropped.Seed0, Seed1=dropped.Seed1,
    )  # fmt: skip


def operands_of(match: AttentionMatch) -> list[Value]:
    return [v for v in (match.query, match.key, match.value, match.added.total, match.mask) if v is not None]


def types_of(match: AttentionMatch) -> list[TensorType]:
    types = [v.tensor_type for v in operands_of(match)]
    return [t if d is None else TensorType(d, t.shape) for t, d in zip(types, [*match.cast, None, None], strict=False)]


# Attention reads every head of keys and values once, where several heads of the query look at copies of one.
#
# Input:  `%1 = ExpandDims(%k) {axis: 2}`, `%2 = BroadcastTo(%1)`, `%3 = Reshape(%2) {shape: (8, 16, 1024, 64)}`, and
# the         same of %v, as operands of `FlashAttentionScore(%q, %3, %6)` Output: `FlashAttentionScore(%q, %k, %v)`,
# whose keys and values have 4 heads


KEY, VALUE = 1, 2
"""Places of the operands whose heads may serve several of the query."""


def without_repeats(graph: Graph) -> bool:
    """Let attentions read keys and values before their heads are repeated; return True if any did."""
    found = {node: sources for node in graph.nodes if (sources := _unrepeated(node)) is not None}
    if not found:
        return False
    nodes: list[Node] = []
    builder = Builder(graph, nodes)
    for node in graph.nodes:
        for place, source in zip((KEY, VALUE), found.get(node, ()), strict=False):
            node.inputs[place] = _in_type(builder.like(node), source)
        nodes.append(node)
    graph.nodes = nodes
    return True


def _unrepeated(node: Node) -> tuple[OperandSource, OperandSource] | None:
    """Return the values whose heads the key and value of an attention repeat equally often, or None."""
    op = node.op
    if not isinstance(op, FlashAttentionScore) or op.packed or op.input_layout not in LAYOUTS:
        return None
    roles = LAYOUTS[op.input_layout]
    if HEADS not in roles or _shards(node.in_strategy, roles.index(HEADS)) or node.out_strategy is not None:
        return None
    sides = [list(sources_of(node.inputs[place], roles, False)) for place in (KEY, VALUE)]
    shared = {each.group for each in sides[0]} & {each.group for each in sides[1]}
    key, value = (source_in(side, op.input_layout, max(shared)) for side in sides)
    if max(shared) == 1 or key is None or value is None:
        return None
    if any(each.in_strategy is not None for source in (key, value) for each, _ in source.passed):
        return None
    types = [operand.tensor_type for operand in node.inputs]
    for place, source in ((KEY, key), (VALUE, value)):
        types[place] = types[place].with_shape(source.value.shape)
    try:
        return (key, value) if op.infer(*types) == node.type else None
    except MspcError:
        return None


def _shards(strategy: Sequence[Any] | None, heads: int) -> bool:
    """Return True if the heads are sharded: a rank may then lack the key heads its query heads need."""
    for entry in strategy or ():
        if isinstance(entry, NamedLayout):
            return True
        if isinstance(entry, tuple) and len(entry) > heads and entry[heads] != 1:
            return True
    return False


def _in_type(builder: Builder, source: OperandSource) -> Value:
    return source.value if source.cast is None else builder.emit(Cast(source.cast), source.value)
