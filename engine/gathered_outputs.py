"""Puts what several ranks have computed together from what each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.compiler.config import Config
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import Layout
from mspc.ir.types import dtype_of
from mspc.runtime.comm.interface import Communicator
from mspc.runtime.slices import gather

Array = Any


def ranks_that(comm: Communicator, *answers: bool) -> list[list[int]]:
    """For every question the ranks that answer it with yes; all ranks call this together."""
    rows = comm.all_gather(np.array([answers], np.int64), tuple(range(comm.size)), 0)
    return [[rank for rank, yes in enumerate(column) if yes] for column in rows.T]


def check_all_have(name: str, config: Config, ranks: Sequence[int]) -> None:
    """Raises MspcError where only some ranks have data for a graph that all must run."""
    if not config.sharded or len(ranks) == config.all_ranks:
        return
    without = [rank for rank in range(config.all_ranks) if rank not in ranks]
    raise MspcError(
        f"the ranks have different numbers of batches for {name}: "
        f"{len(ranks)} of {config.all_ranks} have a further one, rank {without[0]} has none",
        notes=[f"in mode {config.mode} all ranks compute every batch together, so every data set needs as many"],
    )


def global_outputs(
    comm: Communicator, config: Config, values: Sequence[Value], own: Sequence[Array] | None
) -> list[Array]:
    """The outputs of a graph over the data of all ranks; all ranks call this together.

    Rows come in the order of the ranks. Of single numbers, which ranks compute each of its own rows, the mean is taken
    where they are floating-point numbers, and all are in one row else.

    Args:
        values: the graph's results, before slicing. own: what this rank has computed, None where it had no data.
    """
    if config.sharded:
        return [_gathered(comm, value, array) for value, array in zip(values, own or (), strict=True)]
    if not config.feeds_own_rows:
        return list(own or ())
    return [_joined(parts) for parts in _exchanged(comm, own)]


def _gathered(comm: Communicator, value: Value, array: Array) -> Array:
    """A result that a sharded graph has handed out as `array`: a slice, or all of it already."""
    layout = value.layout
    if not isinstance(layout, Layout) or array.shape == tuple(value.shape):
        return array
    return gather(array, layout, tuple(value.shape), comm)


def _joined(parts: Sequence[Array]) -> Array:
    if parts[0].ndim:
        return np.concatenate(parts)
    row = np.stack(parts)
    return row.mean(dtype=np.float64).astype(row.dtype) if row.dtype.kind not in "biu" else row


def _exchanged(comm: Communicator, own: Sequence[Array] | None) -> list[list[Array]]:
    """For every output the arrays of the ranks that have it."""
    known = _described(comm, "" if own is None else ";".join(f"{a.dtype.name}:{_shape(a)}" for a in own))
    have = [rank for rank, text in enumerate(known) if text]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    found: list[list[Array]] = []
    for index in range(len(known[have[0]].split(";"))):
        mine = None if own is None else np.ascontiguousarray(own[index]).reshape(own[index].shape)
        sends = [] if mine is None else [(rank, mine) for rank in others]
        receives = [(rank, *_type(known[rank].split(";")[index])) for rank in have if rank != comm.rank]
        arrived = dict(zip((rank for rank, *_ in receives), comm.exchange(sends, receives), strict=True))
        found.append([arrived[rank] if rank in arrived else mine for rank in have])
    return found


def _described(comm: Communicator, text: str) -> list[str]:
    """The texts of all ranks."""
    everyone = tuple(range(comm.size))
    own = text.encode()
    longest = int(max(comm.all_gather(np.array([len(own)], np.int64), everyone, 0)))
    rows = comm.all_gather(np.frombuffer(own.ljust(max(1, longest)), np.uint8)[None], everyone, 0)
    return [bytes(row).decode().rstrip() for row in rows]


def _shape(array: Array) -> str:
    return ",".join(map(str, array.shape))


def _type(text: str) -> tuple[tuple[int, ...], Any]:
    name, _, sizes = text.partition(":")
    return tuple(int(size) for size in sizes.split(",") if size), dtype_of(name).numpy
