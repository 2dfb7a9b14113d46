"""Exchanges between ranks of several kinds, which meet pair by pair.

A rank's exchange names those to whom it sends and of whom it receives. Its partners may be in exchanges with others
meanwhile, at other nodes. So what one rank sends another is met in the order of both: the first message by the first
that is waited for. An exchange is over once all of its messages are received, and all that it waits for have come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

from mspc.ir.late_dataclass import dataclass
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.spread import flat

Array = Any


@dataclass
class _Pair:
    """What travels from one rank to another. sent: all messages, those that have arrived as None. awaited: how many
    have been waited for."""

    sent: list[Array] = field(default_factory=list[Any])
    awaited: int = 0


@dataclass
class _Posted:
    """An exchange of all ranks of a kind. sends: for every rank (pair, number of the message there). receives: the same
    with the shape that is waited for, and who sends."""

    sends: dict[int, list[tuple[_Pair, int]]]
    receives: dict[int, list[tuple[_Pair, int, tuple[int, ...], int]]]

    def is_over(self, rank: int) -> bool:
        """Whether all that a rank sends is waited for, and all that it waits for is there."""
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
        """For every rank of the kind of this number whether its exchange would be over."""
        posted = self._posted[number]
        return [posted.is_over(rank) for rank in posted.receives]

    def answer(self, number: int) -> dict[int, tuple[Array, ...]] | None:
        """What every rank gets; None where something is not there yet, or not waited for.

        Raises:
            ValueError: a tensor of another shape arrives.
        """
        posted = self._posted[number]
        if not all(map(posted.is_over, posted.receives)):
            return None
        found: dict[int, tuple[Array, ...]] = {}
        for rank, receives in posted.receives.items():
            arrived: list[Array] = []
            for pair, place, shape, source in receives:
                array, pair.sent[place] = pair.sent[place], None
                if array.shape != shape:
                    raise ValueError(
                        f"rank {source} sends shape {array.shape} to rank {rank}, which waits for {shape}"
                    )
                arrived.append(array)
            found[rank] = tuple(arrived)
        del self._posted[number]
        return found
