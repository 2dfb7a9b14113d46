"""Runs a communicator's own collectives on numbers made for them, beside what NumPy makes of the same numbers.

Small and large arrays (which are sent by other means), groups in any order of ranks, element types of every width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np

from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BFLOAT16
from mspc.runtime.comm.interface import Communicator

Array = Any
TYPES = (np.float32, np.float64, np.float16, BFLOAT16.numpy, np.int32, np.int64, np.uint8, np.bool_)
REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
}  # fmt: skip
OF_FLAGS: dict[str, Callable[..., Array]] = {
    "sum": np.logical_or, "max": np.logical_or, "min": np.logical_and, "prod": np.logical_and,
}  # fmt: skip
LARGE = 3001
"""Elements: above what is gathered in one message, and divided by no usual number of ranks."""


@dataclass(frozen=True)
class _Question:
    """label: what is asked. group: which ranks ask it. ask: of the communicator. answer: what a rank has then."""

    label: str
    group: tuple[int, ...]
    ask: Callable[[Communicator], Array]
    answer: Callable[[int], Array]


def asked(comm: Communicator) -> list[Array]:
    """What this rank gets to all questions that it is asked."""
    return [np.array(q.ask(comm)) for q in _questions(comm.size) if comm.rank in q.group]


def expected(rank: int, size: int) -> list[tuple[str, Array]]:
    """(label, array) of the same by NumPy."""
    return [(q.label, np.asarray(q.answer(rank))) for q in _questions(size) if rank in q.group]


def _questions(size: int) -> Iterator[_Question]:
    everyone = tuple(range(size))
    groups = [everyone, everyone[::-1]] if size > 2 else [everyone]
    if size > 3:
        groups += [everyone[::2], everyone[1::2]]
    for group in groups:
        for number, dtype in enumerate(TYPES):
            for how in REDUCE:
                for shape in ((3,), (LARGE,)) if how == "sum" or dtype == np.float32 else ((3,),):
                    yield _reduced(group, how, dtype, shape, number)
            yield from _moved(group, dtype, number)
    yield from _sent(everyone)


def _made(rank: int, number: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Whole numbers so small that every type holds their sums and products, of either sign where it has one."""
    generator = np.random.default_rng([rank, number])
    if np.dtype(dtype) == bool:
        return generator.integers(0, 2, shape).astype(bool)
    low = 0 if np.dtype(dtype).kind == "u" else -2
    return generator.integers(low, 3, shape).astype(dtype)


def _reduced(group: tuple[int, ...], how: str, dtype: Any, shape: tuple[int, ...], number: int) -> _Question:
    def answer(rank: int) -> Array:
        parts = [_made(member, number, dtype, shape) for member in group]
        if parts[0].dtype == bool:
            return reduce(OF_FLAGS[how], parts)
        wide = np.int64 if parts[0].dtype.kind in "iu" else np.float64
        return reduce(REDUCE[how], [part.astype(wide) for part in parts]).astype(dtype)

    return _Question(
        f"all_reduce {how} of {np.dtype(dtype).name}{shape} over {group}", group,
        lambda comm: comm.all_reduce(_made(comm.rank, number, dtype, shape), how, group), answer,
    )  # fmt: skip


def _moved(group: tuple[int, ...], dtype: Any, number: int) -> Iterator[_Question]:
    count = len(group)
    shape = (2 * count, 3 * count)
    name = f"of {np.dtype(dtype).name} over {group}"

    def made(rank: int) -> Array:
        return _made(rank, number, dtype, shape)

    def summed() -> Array:
        parts = [made(member) for member in group]
        if parts[0].dtype == bool:
            return reduce(np.logical_or, parts)
        wide = np.int64 if parts[0].dtype.kind in "iu" else np.float64
        return reduce(np.add, [part.astype(wide) for part in parts]).astype(dtype)

    for axis in (0, 1):
        yield _Question(
            f"all_gather {name} along {axis}", group,
            lambda comm, axis=axis: comm.all_gather(made(comm.rank), group, axis),
            lambda rank, axis=axis: np.concatenate([made(member) for member in group], axis),
        )  # fmt: skip
        yield _Question(
            f"reduce_scatter {name} along {axis}", group,
            lambda comm, axis=axis: comm.reduce_scatter(made(comm.rank), "sum", group, axis),
            lambda rank, axis=axis: np.split(summed(), count, axis)[group.index(rank)],
        )  # fmt: skip
        yield _Question(
            f"all_to_all {name} from {axis} to {1 - axis}", group,
            lambda comm, axis=axis: comm.all_to_all(made(comm.rank), group, axis, 1 - axis),
            lambda rank, axis=axis: np.concatenate(
                [np.split(made(member), count, axis)[group.index(rank)] for member in group], 1 - axis
            ),
        )  # fmt: skip
    for root in {group[0], group[-1]}:
        yield _Question(
            f"broadcast {name} from {root}", group,
            lambda comm, root=root: comm.broadcast(made(comm.rank), root, group), lambda rank, root=root: made(root),
        )  # fmt: skip


def _sent(everyone: tuple[int, ...]) -> Iterator[_Question]:
    count, shape = len(everyone), (4, 3)

    def made(rank: int) -> Array:
        return _made(rank, 99, np.float32, shape)

    def around(comm: Communicator) -> Array:
        after, before = (comm.rank + 1) % count, (comm.rank - 1) % count
        (found,) = comm.exchange([(after, made(comm.rank))], [(before, shape, np.float32)])
        return found

    def handed(comm: Communicator) -> Array:
        comm.send(made(comm.rank), (comm.rank + 1) % count, 7)
        return comm.receive((comm.rank - 1) % count, 7, shape, np.float32)

    def both(comm: Communicator) -> Array:
        after, before, mine = (comm.rank + 1) % count, (comm.rank - 1) % count, made(comm.rank)
        wanted = [(before, shape, np.float32), (after, shape, np.float32)]
        return np.stack(comm.exchange([(after, mine), (before, -mine)], wanted))

    yield _Question("exchange with neighbours", everyone, around, lambda rank: made((rank - 1) % count))
    if count > 1:
        yield _Question(
            "exchange with both neighbours", everyone, both,
            lambda rank: np.stack([made((rank - 1) % count), -made((rank + 1) % count)]),
        )  # fmt: skip
        yield _Question("send and receive", everyone, handed, lambda rank: made((rank - 1) % count))
