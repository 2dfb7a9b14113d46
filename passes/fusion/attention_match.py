"""Finds attention that is written out: from its last product back to query, key, value and mask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import NamedLayout
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import Add, Div, Mul, RealDiv, Select
from mspc.ops.math.matmul import BatchMatMul
from mspc.ops.nn.attention import FlashAttentionScore
from mspc.ops.nn.attention_base import HEADS_BEHIND
from mspc.ops.nn.softmax import Softmax
from mspc.ops.random.dropout import Dropout
from mspc.ops.tensor.creation import MaskedFill
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import Cast
from mspc.passes.fusion.attention_addends import Addends
from mspc.passes.fusion.attention_operands import BATCH, HEADS, SEQUENCE, factor_of, roles_of, source_in, sources_of
from mspc.passes.fusion.causal_masks import causal_mode
from mspc.passes.fusion.masked_rows import elements_of, every_row_holds, may_be_infinite, may_hide

MASKED = -1e4
"""A score replaced by this number or a lower one has no weight after the softmax."""
_SHARDED_AS = {BATCH: "b", HEADS: "n", SEQUENCE: "s"}
Users = Mapping[Value, Sequence[tuple[Node, int]]]
Mesh = tuple[tuple[int, ...], tuple[str, ...], int] | None
Roles = tuple[str, ...]
"""What each dimension of a tensor is: "b" batch, "n" heads, "s" queries, "t" keys, which are sharded as queries or not
at all, "" one that must not be sharded."""


class _NoMatch(Exception):
    """The operators are not an attention, or one that must stay as it is."""


@dataclass
class AttentionMatch:
    """An attention found in the graph.

    nodes: what goes. last: the one whose result the fused operator gives. query, key, value: its operands.
    sparse_mode: of the operator, in place of a shift or a mask.
    added: to the scores. filled: the number that masked scores are for the softmax, None where no row can be masked as
        a whole. infinite: what is added may be minus infinity in whole rows.
    dropout: what drops some of the weights at random.
    between: what is between operands and products, which goes where nobody else reads it. shards: what strategies say
        of each role, the number of slices, or of a layout the axes. mesh: the layouts' device matrix and the rest.
        cast: to which type query, key and value still are to be cast.
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
    """The attention that ends in `product`. Raises _NoMatch."""
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
        at = only_reader(_before(at, match))
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
    """The operator that drops weights one by one, in a graph of all ranks. Raises _NoMatch."""
    if type(node.op) is not Dropout or node.op.shape or node.op.rows or node.out_strategy is not None:
        raise _NoMatch
    return node.op


def _before(node: Node, match: AttentionMatch) -> Value:
    """The scores before one operator between the first product and the softmax; notes what it does."""
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
    """What a number that `node` puts in the place of scores is for the softmax; NaN where it is several."""
    number = np.asarray(number).astype(node.tensor_type.dtype.numpy)
    behind = nodes[next(i for i, n in enumerate(nodes) if isinstance(n.op, Softmax)) + 1 : -1]
    with np.errstate(over="ignore"):
        for after in reversed(behind):
            dtype = after.tensor_type.dtype.numpy
            number = (number.astype(dtype) * np.asarray(factor_of(after)[0]).astype(dtype)).astype(dtype)
    least, most = float(number.min()), float(number.max())
    return least if least == most else math.nan


def _is_product(value: Value, added: int = 2) -> bool:
    """Whether `value` is a product of matrices, or one that is scaled or cast, or to which something is added."""
    while isinstance(value, Node) and isinstance(value.op, Cast | Mul | Div | RealDiv):
        value = value.inputs[isinstance(value.inputs[0], Constant)]
    if isinstance(value, Node) and isinstance(value.op, Add) and added:
        return any(_is_product(operand, added - 1) for operand in value.inputs if operand.shape == value.shape)
    return isinstance(value, Node) and isinstance(value.op, BatchMatMul)


def _take_operands(match: AttentionMatch, scores: Node, users: Users, results: set[Value]) -> None:
    """Decide the operator's layout and take its operands in it. Raises _NoMatch where there is none for all of them."""
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
    """Put a sparse mode in the place of an addend or the mask, where it only hides later keys from a query."""
    if match.mask is None:
        match.sparse_mode = match.added.take_future(scores, _hides_by_addition)
    elif not match.added.values:
        match.sparse_mode = causal_mode(match.mask, scores, lambda near, far: near == match.inverted and far != near)
    if match.sparse_mode:
        match.mask, match.inverted = None, False


def _take_hidden_rows(match: AttentionMatch) -> None:
    """Note what rows without a key are to give. Raises _NoMatch where the operators around the fused one cannot say."""
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


def _hides_by_addition(near: Any, far: Any) -> bool:
    return bool(near == 0 and far <= np.asarray(MASKED).astype(far.dtype))  # BFloat16 has -9984 for it


def _transpose_after(product: Node, users: Users, results: set[Value]) -> list[Node]:
    """The transpose that alone reads a product, or the cast and the transpose behind it."""
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
    """Note what the strategies of the products and of what is between them say of batch, heads and queries."""
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
    """Roles of the dimensions of a value beside scores or operands of `rank` dimensions, aligned at the right."""
    roles = ("b", "n", "s", "") if rank == 4 else ("b", "s", "")
    shape = value.shape
    if len(shape) > rank:
        raise _NoMatch
    return roles[rank - len(shape) :]


def _note(match: AttentionMatch, node: Node, index: int, roles: Roles) -> None:
    """Note how the strategy of one input shards. Raises _NoMatch where strategies disagree or shard what must not
    be."""
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
    """Whether strategies shard the sequence of the queries."""
    return _is_sharded(match, "s")


def _is_sharded(match: AttentionMatch, role: str) -> bool:
    single = 1 if match.mesh is None else -1
    return match.shards.get(role, single) != single


def _check(match: AttentionMatch) -> None:
    """Raises _NoMatch where the fused operator does not take the operands, or the operators are in several places."""
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
