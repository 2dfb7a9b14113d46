"""Places at which ranks wait for each other: collectives that are met, and messages on their way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.collective.base import Collective, Rendezvous
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.ops.collective.point_to_point import ReceiveFromStage, SendToStage
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.runtime.comm.interface import combine, pieces
from mspc.verify.scale.rank_kernels import as_one_rank, rows_along
from mspc.verify.scale.rank_kinds import (
    MAX_PARTS,
    Divided,
    RankKind,
    axes_of_groups,
    by_key,
    common_lead,
    flat,
    on_mesh,
    one_or_all,
    parts_of,
    told_apart,
    widened,
)

# Exchanges between ranks of several kinds meet pair by pair.
#
# A rank's exchange names its receivers and senders. Its partners may be in exchanges with others meanwhile, at other
# nodes. So messages from one rank to another are matched in the order of both: the first message sent with the first
# awaited. An exchange is over once all of its messages are received, and all that it waits for have come.


Array = Any


@dataclass
class _Pair:
    """Messages from one rank to another. sent: all messages, those that have arrived as None. awaited: the number of
    messages waited for."""

    sent: list[Array] = field(default_factory=list[Any])
    awaited: int = 0


@dataclass
class _Posted:
    """An exchange of all ranks of a kind. sends: for every rank (pair, number of the message there). receives: the same
    with the shape that is waited for, and who sends."""

    sends: dict[int, list[tuple[_Pair, int]]]
    receives: dict[int, list[tuple[_Pair, int, tuple[int, ...], int]]]

    def is_over(self, rank: int) -> bool:
        """Return whether all that a rank sends is waited for, and all that it waits for is there."""
        sent = all(pair.awaited > place for pair, place in self.sends[rank])
        return sent and all(len(pair.sent) > place for pair, place, _, _ in self.receives[rank])


class Exchanges:
    """Exchanges that kinds have come to."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._posted: dict[int, _Posted] = {}

    def post(self, number: int, kind: RankKind, ops: Sequence[Any], arrays: Sequence[Array]) -> None:
        """Note that the kind of this number has come to an exchange, once. ops: as every rank has it, or one."""
        if number in self._posted:
            return
        own = ops if len(ops) > 1 else list(ops) * len(kind.ranks)
        flats = [flat(array, kind.mesh) for array in arrays]
        posted = self._posted[number] = _Posted({}, {})
        for place, (rank, op) in enumerate(zip(kind.ranks, own, strict=True)):
            posted.sends[rank] = []
            for array, target in zip(flats, op.send_rank_ids, strict=True):
                pair = self._pair(rank, target)
                posted.sends[rank].append((pair, len(pair.sent)))
                pair.sent.append(array[place])
            posted.receives[rank] = []
            for source, shape in zip(op.recv_rank_ids, op.recv_shapes, strict=True):
                pair = self._pair(source, rank)
                posted.receives[rank].append((pair, pair.awaited, tuple(shape), source))
                pair.awaited += 1

    def _pair(self, source: int, target: int) -> _Pair:
        return self._pairs.setdefault((source, target), _Pair())

    def over(self, number: int) -> list[bool]:
        """Return, for every rank of the kind of this number, whether its exchange would be over."""
        posted = self._posted[number]
        return [posted.is_over(rank) for rank in posted.receives]

    def answer(self, number: int) -> dict[int, tuple[Array, ...]] | None:
        """Return every rank's results, or None if a message is missing or not waited for yet. Raise ValueError if a
        tensor of another shape arrives."""
        posted = self._posted[number]
        if not all(map(posted.is_over, posted.receives)):
            return None
        found: dict[int, tuple[Array, ...]] = {}
        for rank, receives in posted.receives.items():
            arrived: list[Array] = []
            for pair, place, shape, source in receives:
                array, pair.sent[place] = pair.sent[place], None
                if array.shape != shape:
                    raise ValueError(f"rank {source} sends shape {array.shape} to rank {rank}, which waits for {shape}")
                arrived.append(array)
            found[rank] = tuple(arrived)
        del self._posted[number]
        return found


# Collectives on all ranks at once: along dimensions of the ranks' mesh, or from tensors by their ranks.


Axes = Sequence[int]
_REDUCE: dict[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def partners_of(op: Any) -> tuple[int, ...]:
    """Return the ranks that take part in a collective."""
    if isinstance(op, NeighborExchange):
        return (*op.send_rank_ids, *op.recv_rank_ids)
    return op.members


def along_axes(op: Collective, arrays: Sequence[Array], mesh: Sequence[int], axes: Axes) -> Any:
    """Return the result if every group is along dimensions of the mesh, in the order of its ranks; None for a kind of
    collective that has no such form."""
    lead = common_lead(arrays, len(mesh))
    lead = tuple(size if axis in axes else given for axis, (size, given) in enumerate(zip(mesh, lead, strict=True)))
    if isinstance(op, FetchRows | SendRows):
        return rows_along(op, arrays, lead, axes)
    form = _ALONG.get(type(op))
    if form is None:
        return None
    return one_or_all([form(op, array, lead, axes) for array in arrays])


def _wide(array: Array, lead: Sequence[int], axes: Axes) -> Array:
    """Return the array with all ranks of a group along `axes`."""
    shape = [lead[a] if a in axes else array.shape[a] for a in range(len(lead))]
    return widened(array, tuple(shape))


def _combined(array: Array, lead: Sequence[int], axes: Axes, how: str) -> Array:
    array = _wide(array, lead, axes)
    if array.dtype == bool:
        return (np.any if how in ("sum", "max") else np.all)(array, tuple(axes), keepdims=True)
    return _REDUCE[how].reduce(array, tuple(axes), keepdims=True, dtype=array.dtype)


def _traded(array: Array, depth: int, axes: Axes, parts: Sequence[int], split: int, concat: int) -> Array:
    """Return an array of which a dimension is divided among the ranks along `axes`, and another is joined of all that
    they have. parts: of the divided dimension along each of the axes; ones leave it whole."""
    lead, shape = array.shape[:depth], list(array.shape[depth:])
    count = math.prod(parts)
    if shape[split] % count:
        raise ValueError(f"dimension {split} of {tuple(shape)} does not divide by {count} ranks")
    shape[split] //= count
    divided = array.reshape(*lead, *shape[:split], *parts, *shape[split:])
    receivers = range(depth + split, depth + split + len(axes))
    front = [receivers[list(axes).index(axis)] if axis in axes else axis for axis in range(depth)]
    behind = [place for place in range(depth, divided.ndim) if place not in receivers]
    moved = divided.transpose(*front, *behind[:concat], *axes, *behind[concat:])
    shape[concat] *= math.prod(lead[axis] for axis in axes)
    return moved.reshape(*moved.shape[:depth], *shape)


def _all_gather(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    depth = len(lead)
    return _traded(_wide(array, lead, axes), depth, axes, [1] * len(axes), 0, op.axis % (array.ndim - depth))


def _reduce_scatter(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    depth = len(lead)
    sums = _combined(array, lead, axes, op.op)
    return _traded(sums, depth, axes, [lead[axis] for axis in axes], op.axis % (array.ndim - depth), 0)


def _all_to_all(op: Any, array: Array, lead: Sequence[int], axes: Axes) -> Array:
    depth = len(lead)
    split, concat = op.dims_of(array.ndim - depth)
    return _traded(_wide(array, lead, axes), depth, axes, [lead[axis] for axis in axes], split, concat)


_ALONG: dict[type[Collective], Callable[[Any, Array, Sequence[int], Axes], Array]] = {
    AllReduce: lambda op, array, lead, axes: _combined(array, lead, axes, op.op),
    AllGather: _all_gather,
    ReduceScatter: _reduce_scatter,
    AlltoAll: _all_to_all,
}


def result_of_rank(op: Any, rank: int, tensors: Mapping[int, Sequence[Array]]) -> Any:
    """Return the result of a collective over a group on one rank. tensors: operands by rank. Raise ValueError if the
    parts of a group do not fit together, KeyError if a member of a group calls nothing."""
    members = op.ranks
    place = members.index(rank)
    if isinstance(op, AllReduce):
        parts = zip(*(tensors[member] for member in members), strict=True)
        return one_or_all([combine(each, op.op) for each in parts])
    own = [tensors[member][0] for member in members]
    if isinstance(op, AllGather):
        return np.concatenate(own, op.axis)
    if isinstance(op, ReduceScatter):
        return pieces(combine(own, op.op), len(members), op.axis)[place]
    if isinstance(op, AlltoAll):
        return np.concatenate([pieces(part, len(members), op.split_dim)[place] for part in own], op.concat_dim)
    if isinstance(op, Broadcast):
        return tuple(np.array(part) for part in tensors[op.root_rank])
    if isinstance(op, FetchRows):
        return as_one_rank(op)(np.concatenate(own), tensors[rank][1])
    if isinstance(op, SendRows):  # rows are added in the order of ranks
        rows, places = zip(*(_rows(*tensors[member]) for member in sorted(members)), strict=True)
        table = as_one_rank(op, size=op.total)(np.concatenate(rows), np.concatenate(places))
        return pieces(table, len(members), 0)[place]
    raise KeyError(op.name)


def _rows(rows: Array, places: Array) -> tuple[Array, Array]:
    return rows.reshape(places.size, *rows.shape[places.ndim :]), places.reshape(-1)


def exchanged(
    ops: Sequence[NeighborExchange], place: Mapping[int, int], ranks: Sequence[int], arrays: Sequence[Array]
) -> tuple[Array, ...]:
    """Return the tensors that every rank of a kind gets from others of it. arrays: operands by rank. Raise ValueError
    if a rank waits for a tensor that no other sends."""
    found: list[Array] = []
    if len({len(op.recv_rank_ids) for op in ops}) > 1:
        raise ValueError("ranks of one kind receive different numbers of tensors")
    for number in range(len(ops[0].recv_rank_ids)):
        sources = np.empty(len(ranks), np.int64)
        operands = np.empty(len(ranks), np.int64)
        for at, (rank, op) in enumerate(zip(ranks, ops, strict=True)):
            source = op.recv_rank_ids[number]
            earlier = op.recv_rank_ids[:number].count(source)
            mine = [i for i, target in enumerate(ops[place[source]].send_rank_ids) if target == rank]
            if earlier >= len(mine):
                raise ValueError(f"rank {source} sends nothing to rank {rank} that it waits for")
            sources[at], operands[at] = place[source], mine[earlier]
        chosen = [arrays[i][sources[operands == i]] for i in range(len(arrays))]
        shape = next(part.shape[1:] for part in chosen if len(part))
        if any(len(part) and part.shape[1:] != shape for part in chosen):
            raise ValueError("tensors of different shapes arrive where one shape is expected")
        made = np.empty((len(ranks), *shape), arrays[0].dtype)
        for i, part in enumerate(chosen):
            made[operands == i] = part
        found.append(made)
    return tuple(found)


class NodeError(Exception):
    """A node cannot be computed on some ranks. others: nodes at which ranks are that should meet them there. computed:
    its kernel failed."""

    def __init__(
        self, kind: RankKind, node: Node, reason: str, others: Sequence[Node] = (), computed: bool = False
    ) -> None:
        super().__init__(f"{node.label}: {reason}")
        self.computed = computed
        self.kind, self.node, self.reason, self.others = kind, node, reason, tuple(others)


@dataclass
class CollectiveRequest:
    """A collective that a kind has come to. ops: as every rank has it, or one for all."""

    kind: RankKind
    node: Node
    ops: Sequence[Any]
    arrays: Sequence[Array]

    @cached_property
    def key(self) -> tuple[int, ...]:
        """The identities of the operators: nodes of equal layers have the same ones."""
        return tuple(map(id, self.ops))

    def op_of_ranks(self) -> list[tuple[int, Any]]:
        """Return every rank with its operator."""
        ranks = self.kind.ranks
        return list(zip(ranks, self.ops if len(self.ops) > 1 else list(self.ops) * len(ranks), strict=True))


class Board:
    """The collectives at which kinds wait, and messages on their way: by the first ranks at both ends and the tag the
    sender, the value, the node, and the ranks whose message is not received yet."""

    def __init__(self, kinds: Sequence[RankKind]) -> None:
        self.waiting: dict[int, CollectiveRequest] = {}
        self._kind_of = {rank: number for number, kind in enumerate(kinds) for rank in kind.ranks}
        self._messages: dict[tuple[int, int], dict[int, list[Any]]] = {}
        self._exchanges = Exchanges()

    def enter(self, number: int, request: CollectiveRequest) -> None:
        self.waiting[number] = request

    def answers(self) -> list[tuple[int, Any]]:
        """Return the results for kinds that need wait no longer."""
        found: list[tuple[int, Any]] = []
        for number, request in self.waiting.items():
            if isinstance(request.ops[0], NeighborExchange) and not self._groups_of(request)[1]:
                self._exchanges.post(number, request.kind, request.ops, request.arrays)
        for number, request in list(self.waiting.items()):
            if number in self.waiting:
                found += self._answer(number, request)
        return found

    def _answer(self, number: int, request: CollectiveRequest) -> list[tuple[int, Any]]:
        op = request.ops[0]
        if isinstance(op, SendToStage):
            return self._send(number, request)
        if isinstance(op, ReceiveFromStage):
            return self._receive(number, request)
        groups, is_inside = self._groups_of(request)
        if is_inside:
            del self.waiting[number]
            return [(number, _inside(request, groups))]
        return self._exchange(number, request) if isinstance(op, NeighborExchange) else self._across(number)

    @staticmethod
    def _groups_of(request: CollectiveRequest) -> tuple[list[tuple[int, ...]], bool]:
        """Return the groups of all ranks, and whether all of them are of one kind."""
        known = request.kind.meetings.groups
        if request.key not in known:
            ops, numbers = told_apart(request.ops)
            distinct = [partners_of(op) for op in ops]
            own = request.kind.place
            is_inside = all(rank in own for group in set(distinct) for rank in group)
            known[request.key] = [distinct[number] for number in numbers], is_inside
        return known[request.key]

    def _exchange(self, number: int, request: CollectiveRequest) -> list[tuple[int, Any]]:
        try:
            found = self._exchanges.answer(number)
        except ValueError as error:
            raise NodeError(request.kind, request.node, str(error)) from error
        if found is None:
            return []
        del self.waiting[number]
        return [(number, _gathered(request.kind, found))]

    def check(self) -> None:
        """Check a step after which nothing goes on. Raise Divided if some ranks of a kind wait, and others of it could
        go on; NodeError if ranks wait for each other because they disagree about an exchange or a collective, or nobody
        has received a message."""
        for number, request in self.waiting.items():
            parts = by_key(request.kind, self._able(number, request))
            if len(parts) > 1:
                raise Divided(request.kind, parts)
        self._check_exchanges()
        self._check_collectives()
        for box in self._messages.values() if not self.waiting else ():
            for tag, (kind, _, node, left) in box.items():
                raise NodeError(kind, node, f"nobody receives the message of rank {min(left)} under tag {tag}")

    def _able(self, number: int, request: CollectiveRequest) -> list[bool]:
        """Return, for every rank, whether it could go on by itself."""
        op = request.ops[0]
        if isinstance(op, ReceiveFromStage):
            return [self._message_of(rank - op.distance, op) is not None for rank in request.kind.ranks]
        if isinstance(op, NeighborExchange):
            return self._exchanges.over(number)
        return [all(self._is_at(rank, own) for rank in own.members) for _, own in request.op_of_ranks()]

    def _is_at(self, rank: int, op: Any) -> bool:
        """Return whether a rank waits in a collective of this kind, among the same ranks."""
        request = self.waiting.get(self._kind_of.get(rank, -1))
        if request is None or not isinstance(request.ops[0], type(op)):
            return False
        return op.members == request.ops[request.kind.place[rank] if len(request.ops) > 1 else 0].members

    def _message_of(self, source: int, op: ReceiveFromStage) -> tuple[dict[int, list[Any]], RankKind, Array] | None:
        """Return the message that a rank has sent for this operator: its key, the kind that has sent it, and the
        message."""
        for (first, target), box in self._messages.items():
            if first - target == -op.distance and _tag(op) in box:
                sender, array, _, left = box[_tag(op)]
                if source in left:
                    return box, sender, array
        return None

    def _check_exchanges(self) -> None:
        requests = [r for r in self.waiting.values() if isinstance(r.ops[0], NeighborExchange)]
        ops, tensors = _of_ranks(requests)
        for request in requests:
            if all(partner in ops for op in request.ops for partner in partners_of(op)):
                _check_agreed(request, ops, tensors)

    def _send(self, number: int, request: CollectiveRequest) -> list[tuple[int, Any]]:
        (array,) = request.arrays
        kind = request.kind
        ops = list(dict.fromkeys(request.ops))
        if len(ops) > 1:
            raise NodeError(kind, request.node, "ranks of one kind send to different places")
        box = self._messages.setdefault((kind.ranks[0], kind.ranks[0] + ops[0].distance), {})
        if _tag(ops[0]) in box:
            raise NodeError(kind, request.node, f"a second message under tag {ops[0].sr_tag} is sent before the first")
        box[_tag(ops[0])] = [kind, array, request.node, {*kind.ranks}]
        del self.waiting[number]
        return [(number, array)]

    def _receive(self, number: int, request: CollectiveRequest) -> list[tuple[int, Any]]:
        op, kind = request.ops[0], request.kind
        sources = [rank - op.distance for rank in kind.ranks]
        first = self._message_of(sources[0], op)
        if first is None:
            return []
        box, sender, array = first
        if sender.mesh == kind.mesh and list(sender.ranks) == sources and len(box[_tag(op)][3]) == len(sources):
            del box[_tag(op)]
        else:
            found = [each for source in sources if (each := self._message_of(source, op)) is not None]
            if len(found) < len(sources):
                return []
            parts = [flat(array, sender.mesh)[sender.place[source]]
                     for source, (_, sender, array) in zip(sources, found, strict=True)]  # fmt: skip
            array = on_mesh(np.stack(parts), kind.mesh)
            for source, (box, *_) in zip(sources, found, strict=True):
                box[_tag(op)][3].discard(source)
                if not box[_tag(op)][3]:
                    del box[_tag(op)]
        own = array.shape[kind.depth :]
        if own != tuple(op.shape):
            raise NodeError(kind, request.node, f"a message of shape {own} arrives, not {tuple(op.shape)}")
        del self.waiting[number]
        return [(number, array)]

    def _across(self, number: int) -> list[tuple[int, Any]]:
        """Return a meeting of ranks of several kinds, once all of these have come to it."""
        meeting = self._meeting(number)
        called = told_apart([op for each in meeting.values() for op in each.ops])[0]
        if not all(self._is_at(rank, op) for op in called for rank in op.members):
            return []
        ops, tensors = _of_ranks(meeting.values())
        try:
            given = _met(meeting[number], ops, tensors)
        except NodeError as error:
            raise _among(error, meeting[number], meeting.values()) from error
        for each in meeting:
            del self.waiting[each]
        return [(each, _gathered(request.kind, given)) for each, request in meeting.items()]

    def _meeting(self, number: int) -> dict[int, CollectiveRequest]:
        """Return the kinds that wait in collectives of one type with partners among each other."""
        meeting: dict[int, CollectiveRequest] = {}
        open_numbers = [number]
        while open_numbers:
            each = open_numbers.pop()
            request = self.waiting.get(each)
            if each in meeting or request is None or type(request.ops[0]) is not type(self.waiting[number].ops[0]):
                continue
            meeting[each] = request
            groups = told_apart(self._groups_of(request)[0])[0]
            open_numbers += {self._kind_of.get(rank, -1) for group in groups for rank in group}
        return meeting

    def _check_collectives(self) -> None:
        for number, request in self.waiting.items():
            if not isinstance(request.ops[0], ReceiveFromStage | NeighborExchange):
                meeting = self._meeting(number)
                ops, tensors = _of_ranks(meeting.values())
                if any(rank not in ops for op in request.ops for rank in op.members):
                    continue
                try:
                    _check_agreed(request, ops, tensors)
                except NodeError as error:
                    raise _among(error, request, meeting.values()) from error


def _among(error: NodeError, request: CollectiveRequest, meeting: Iterable[CollectiveRequest]) -> NodeError:
    others = [each.node for each in meeting if each is not request]
    return NodeError(error.kind, error.node, error.reason, others, error.computed)


def _of_ranks(requests: Iterable[CollectiveRequest]) -> tuple[dict[int, Any], dict[int, list[Array]]]:
    ops: dict[int, Any] = {}
    tensors: dict[int, list[Array]] = {}
    for request in requests:
        flats = [flat(array, request.kind.mesh) for array in request.arrays]
        for place, (rank, op) in enumerate(request.op_of_ranks()):
            ops[rank] = op
            tensors[rank] = [array[place] for array in flats]
    return ops, tensors


def _tag(op: Any) -> int:
    return int(op.sr_tag)


def _check_agreed(request: CollectiveRequest, ops: Mapping[int, Any], tensors: Mapping[int, Sequence[Array]]) -> None:
    """Raise NodeError if ranks that shall meet disagree, and would wait for each other."""
    announced: dict[int, list[Rendezvous]] = {}
    for rank, op in ops.items():
        if mistake := op.mistake_on(rank):
            raise NodeError(request.kind, request.node, mistake)
        types = [TensorType(dtype_of(array.dtype), array.shape) for array in tensors[rank]]
        announced[rank] = op.rendezvous(rank, types)
    called: dict[Rendezvous, dict[int, None]] = {}
    for rank, meetings in announced.items():
        for meeting in meetings:
            called.setdefault(meeting, {})[rank] = None
    for meeting, callers in called.items():
        other = next((rank for rank in meeting.ranks if rank not in callers), None)
        if other is not None:
            given = announced.get(other, ())
            differ = any(each.said != meeting.said for each in given)
            theirs = "; ".join(_words(each, differ) for each in given) or "nothing"
            raise NodeError(
                request.kind, request.node,
                f"rank {next(iter(callers))} calls {_words(meeting, differ)}, and rank {other} {theirs}, so that they "
                f"never meet{' (sizes are the small ones)' * differ}",
            )  # fmt: skip


def _words(meeting: Rendezvous, with_types: bool) -> str:
    text = meeting.said if with_types else meeting.said.partition(" of <")[0]
    return f"{text} among ranks {', '.join(map(str, meeting.ranks))}"


def _met(request: CollectiveRequest, ops: dict[int, Any], tensors: dict[int, list[Array]]) -> dict[int, Any]:
    _check_agreed(request, ops, tensors)
    try:
        return {rank: result_of_rank(op, rank, tensors) for rank, op in ops.items()}
    except KeyError as error:
        raise NodeError(request.kind, request.node, f"rank {error} takes no part in it") from error
    except (ValueError, IndexError, MspcError) as error:
        raise NodeError(request.kind, request.node, str(error)) from error


def _exchanged(request: CollectiveRequest, first: bool) -> tuple[Array, ...]:
    kind = request.kind
    by_rank = dict(request.op_of_ranks())
    flats = [flat(array, kind.mesh) for array in request.arrays]
    try:
        if first:
            _check_agreed(request, *_of_ranks([request]))
        found = exchanged(list(by_rank.values()), kind.place, kind.ranks, flats)
    except (ValueError, IndexError, StopIteration, NodeError) as error:
        _divide_by_places(kind, list(by_rank.values()))
        raise error if isinstance(error, NodeError) else NodeError(kind, request.node, str(error)) from error
    return tuple(on_mesh(array, kind.mesh) for array in found)


def _divide_by_places(kind: RankKind, ops: Sequence[NeighborExchange]) -> None:
    """Raise Divided if ranks of a kind exchange with neighbours of other distances, and may not reach it together."""
    count = len(kind.ranks)

    def distances(place: int, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple((kind.place[rank] - place) % count for rank in ranks)

    keys = [(distances(p, op.send_rank_ids), distances(p, op.recv_rank_ids)) for p, op in enumerate(ops)]
    parts = by_key(kind, keys)
    if 1 < len(parts) <= MAX_PARTS:
        raise Divided(kind, parts)


def _gathered(kind: RankKind, given: dict[int, Any]) -> Any:
    rows = [parts_of(given[rank]) for rank in kind.ranks]
    made = tuple(on_mesh(np.stack(part), kind.mesh) for part in zip(*rows, strict=True))
    return made if isinstance(given[kind.ranks[0]], tuple) else made[0]


def _inside(request: CollectiveRequest, groups: Sequence[Sequence[int]]) -> Any:
    kind, key = request.kind, request.key
    known = kind.meetings.axes
    if isinstance(request.ops[0], NeighborExchange):
        first = key not in known
        known[key] = None
        return _exchanged(request, first)
    if key not in known:
        is_one_each = len(told_apart(request.ops)[0]) == len(told_apart(groups)[0])
        known[key] = axes_of_groups(kind, groups) if is_one_each else None
    axes = known[key]
    if axes is not None:
        try:
            found = along_axes(request.ops[0], request.arrays, kind.mesh, axes)
        except (ValueError, IndexError, MspcError) as error:
            raise NodeError(kind, request.node, str(error)) from error
        if found is not None:
            return found
    return _gathered(kind, _met(request, *_of_ranks([request])))
