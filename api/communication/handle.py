"""The functions of collectives share the handle of work that is done already, and the checks of ranks by name."""

from __future__ import annotations

from typing import Any

from mspc.api.communication.groups import listed, ranks_of, require_init
from mspc.api.errors import ApiTypeError, ApiValueError


class CommHandle:
    """Work that was requested with `async_op=True`. It is done when the function returns: a compiled graph finds by
    itself what can run at the same time."""

    def wait(self) -> None:
        """Return at once."""


_DONE = CommHandle()


def handle_of(async_op: bool) -> CommHandle | None:
    """What is returned beside a result: a handle where one was requested."""
    return _DONE if async_op else None


def member(function: str, name: str, rank: Any, group: str) -> int:
    """A rank that an argument names by its number in the job.

    Raises:
        RuntimeError: before `init()`. TypeError: no integer. ValueError: it is not in the group.
    """
    require_init(function)
    if isinstance(rank, bool) or not isinstance(rank, int):
        raise ApiTypeError(f"{function}: {name} must be an integer, not {rank!r}")
    ranks = ranks_of(group)
    if rank not in ranks:
        raise ApiValueError(f"{function}: {name} {rank} is not in group {group!r}, which has {listed(ranks)}")
    return rank


def number_in_group(function: str, name: str, rank: Any, group: str) -> int:
    """The group's number of a rank that an argument names. Raises as `member`."""
    return ranks_of(group).index(member(function, name, rank, group))


def size_of(function: str, group: str) -> int:
    """Number of ranks of a group. Raises RuntimeError before `init()`, ValueError for an unknown group."""
    require_init(function)
    return len(ranks_of(group))


def even_parts(function: str, name: str, rows: int, count: int) -> tuple[int, ...]:
    """The sizes of equal parts of a first dimension, one for each rank. Raises ValueError where they do not divide."""
    if rows % count:
        raise ApiValueError(
            f"{function}: the first dimension of {name} is {rows}, which does not divide by {count} ranks"
        )
    return (rows // count,) * count


def split_sizes(function: str, name: str, sizes: Any, rows: int, count: int) -> tuple[int, ...]:
    """The sizes of parts that a caller lists, one for each rank; equal parts where nothing is listed.

    Raises:
        TypeError: they are no integers. ValueError: they are not as many as ranks, or not all rows together.
    """
    if not sizes:
        return even_parts(function, name.partition("_")[0], rows, count)
    found = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,)
    if any(isinstance(size, bool) or not isinstance(size, int) for size in found):
        raise ApiTypeError(f"{function}: {name} must be a list of integers, not {sizes!r}")
    if len(found) != count or min(found) < 0:
        raise ApiValueError(f"{function}: {name} must be {count} numbers from 0 on, one for each rank, not {sizes!r}")
    if sum(found) != rows:
        raise ApiValueError(f"{function}: {name} {sizes!r} is {sum(found)} rows together, the tensor has {rows}")
    return found


def square(function: str, numbers: Any, count: int) -> list[int]:
    """A matrix of `count` rows and columns, given as one list of numbers from 0 on. Raises TypeError, ValueError."""
    if not isinstance(numbers, list) or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
        raise ApiTypeError(f"{function}: send_count_matrix must be a list of integers, not {numbers!r}")
    if len(numbers) != count * count or min(numbers) < 0:
        raise ApiValueError(
            f"{function}: send_count_matrix must be {count} x {count} numbers from 0 on, one row for each rank, "
            f"not {numbers!r}"
        )
    return numbers
