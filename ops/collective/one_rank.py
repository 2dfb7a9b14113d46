"""Communicators without other ranks: for a run on one rank, and for a rank whose peers are not running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = Any
Ranks = tuple[int, ...]


class OneRank:
    """Communicator of a run on one rank, with the interface of `mspc.runtime.comm.interface.Communicator`: nothing is
    sent, and groups of several ranks have the data of this one."""

    rank, size = 0, 1

    def all_reduce(self, array: Array, *_: Any, **__: Any) -> Array:
        return np.array(array)

    all_gather = reduce_scatter = all_to_all = broadcast = all_reduce

    def exchange(self, sends: Sequence[tuple[int, Array]], receives: Sequence[Any]) -> list[Array]:
        return [np.array(array) for _, array in sends]

    def exchange_into(self, sends: Sequence[tuple[int, Array]], receives: Sequence[tuple[int, Array]]) -> None:
        for (_, array), (_, target) in zip(sends, receives, strict=True):
            target[...] = array

    def send(self, array: Array, rank: int, tag: int = 0) -> None:
        raise ValueError(f"there is no rank {rank} to send to; this run has one rank")

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        raise ValueError(f"there is no rank {rank} to receive from; this run has one rank")

    def barrier(self, ranks: Ranks) -> None:
        pass

    def for_graph(self, number: int) -> OneRank:
        return self

    def beside(self) -> OneRank:
        return self

    def say(self, text: str) -> None:
        pass


class EqualRanks(OneRank):
    """Communicator of a script that is only compiled: every other rank has the same as this one, and sends zeros."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def all_reduce(self, array: Array, op: str, ranks: Ranks) -> Array:
        if op not in ("sum", "prod"):
            return np.array(array)
        return (array * len(ranks) if op == "sum" else array ** len(ranks)).astype(array.dtype)

    def all_gather(self, array: Array, ranks: Ranks, axis: int = 0) -> Array:
        return np.concatenate([array] * len(ranks), axis)

    def reduce_scatter(self, array: Array, op: str, ranks: Ranks, axis: int = 0) -> Array:
        return np.split(self.all_reduce(array, op, ranks), len(ranks), axis)[ranks.index(self.rank)]

    def all_to_all(self, array: Array, ranks: Ranks, split_dim: int, concat_dim: int) -> Array:
        part = np.split(array, len(ranks), split_dim)[ranks.index(self.rank)]
        return np.concatenate([part] * len(ranks), concat_dim)

    def exchange(self, sends: Any, receives: Sequence[tuple[int, tuple[int, ...], Any]]) -> list[Array]:
        return [np.zeros(shape, dtype) for _, shape, dtype in receives]

    def send(self, array: Array, rank: int, tag: int = 0) -> None:
        pass

    def receive(self, rank: int, tag: int, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.zeros(shape, dtype)
