"""Groups of ranks, and this rank's number in them."""

from __future__ import annotations

from typing import Any, ClassVar

from mspc.ir.diagnostics import ranks_listed
from mspc.mindspore_api import checks, state
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.setting_kind import Setting, note_places, say_once, table
from mspc.sharding.groups import WORLD_GROUPS


def require_init(function: str) -> state.Session:
    """Return the session, for a function that needs communication. Raise RuntimeError before `init()`."""
    session = state.current()
    if not session.initialized:
        notes = ["call mindspore.communication.init() first"]
        raise ApiRuntimeError(f"{function}() was called before init()", notes, code="E1010")
    return session


def ranks_of(group: str) -> tuple[int, ...]:
    """Return the ranks of a group, in its order. Raise TypeError if the name is no string; ValueError for an unknown
    group."""
    if not isinstance(group, str):
        raise ApiTypeError(f"the name of a group must be a string, not {group!r}")
    session = state.current()
    if group in WORLD_GROUPS:
        return tuple(range(world_size(session)))
    if group not in session.groups:
        known = ", ".join([WORLD_GROUPS[0], *session.groups])
        raise ApiValueError(f"there is no group {group!r}; known are {known}")
    return session.groups[group]


def world_size(session: state.Session) -> int:
    """Return the number of ranks of the job; without a launcher, the script's device_num."""
    return session.size if session.launched else session.parallel.get("device_num") or session.size


HCCL_WORLD_COMM_GROUP = "hccl_world_group"
NCCL_WORLD_COMM_GROUP = "nccl_world_group"
MCCL_WORLD_COMM_GROUP = "mccl_world_group"


class _OfSession(type):
    """Metaclass with the attributes of `GlobalComm` that depend on the session."""

    @property
    def INITED(cls) -> bool:
        """Whether `init()` was called. MindSpore's programs for one process set it instead."""
        return state.current().initialized

    @INITED.setter
    def INITED(cls, value: bool) -> None:
        if not isinstance(value, bool):
            raise ApiTypeError(f"GlobalComm.INITED must be True or False, not {value!r}")
        state.current().initialized = value


class GlobalComm(metaclass=_OfSession):
    """Names of the group of all ranks, and whether it exists (`INITED`)."""

    BACKEND: ClassVar[str] = "mccl"
    WORLD_COMM_GROUP: ClassVar[str] = WORLD_GROUPS[0]
    CHECK_ENVS: ClassVar[bool] = True


class ReduceOp:
    """Reductions of collectives. AVG is only supported by `mint.distributed`."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"
    AVG = "avg"


_INIT = table(Setting("init", ""))
"""Key for the line that calls `init`."""


def init(backend_name: str | None = None) -> None:
    """Set up ranks and groups. "nccl" requests GPUs, unless `device_target` or `--device` requests another device.
    Raise TypeError if `backend_name` is no string; ValueError if it is not "hccl", "nccl" or "mccl"; RuntimeError if
    the environment sets RANK_SIZE, but no launcher has started the ranks."""
    if backend_name not in (None, "hccl", "nccl", "mccl"):
        raise ApiValueError(f"init: backend_name {backend_name!r} is not 'hccl', 'nccl' or 'mccl'")
    session = state.current()
    if session.claimed > 1:  # a loop over RANK_ID: every process would train alone on data of its own
        raise ApiRuntimeError(
            f"init: RANK_SIZE is {session.claimed}, but no launcher has started the ranks, so that they cannot meet",
            notes=[
                f"start all ranks with mspc run SCRIPT --ranks {session.claimed}, mspc launch, or mpirun -n "
                f"{session.claimed} in place of a loop over RANK_ID",
                "without RANK_SIZE in the environment the script runs as one rank",
            ],
        )
    session.initialized = True
    session.backend = backend_name or ""
    note_places(session.set_at, _INIT, {"init": session.backend})
    if session.claimed and not session.launched:
        more = "mspc run --ranks N, mspc launch and mpirun start more"
        say_once("init", f"init: no launcher started this process: it runs as one rank; {more}")


def _is_initialized() -> bool:
    """Return whether `init` was called, under the name that MindSpore's own code has for it."""
    return state.current().initialized


def release() -> None:
    """Undo `init` and delete the groups. Raise RuntimeError before `init()`."""
    session = require_init("release")
    session.initialized = False
    session.groups.clear()


def get_rank(group: str = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return this rank's number in the group. Raise RuntimeError before `init()`; ValueError if there is no such group,
    or this rank is not in it."""
    session = require_init("get_rank")
    return check_member("get_rank", "rank", session.rank, group).index(session.rank)


def get_group_size(group: str = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return the number of ranks of the group. Raise RuntimeError before `init()`, ValueError for an unknown group."""
    require_init("get_group_size")
    return len(ranks_of(group))


def get_local_rank(group: str = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return this rank's number among those of the group on this host, in the order of the group. Raise as
    `get_rank`."""
    session = require_init("get_local_rank")
    if group in WORLD_GROUPS:
        return session.local_rank
    here = _on_this_host(session, check_member("get_local_rank", "rank", session.rank, group))
    return here.index(session.rank)


def get_local_rank_size(group: str = GlobalComm.WORLD_COMM_GROUP) -> int:
    """Return the number of ranks of the group on this host. Raise as `get_rank`."""
    session = require_init("get_local_rank_size")
    if group in WORLD_GROUPS:
        return session.local_size
    return len(_on_this_host(session, check_member("get_local_rank_size", "rank", session.rank, group)))


def get_world_rank_from_group_rank(group: str, group_rank_id: int) -> int:
    """Return the rank in the job of the rank with number `group_rank_id` in the group. Raise RuntimeError before
    `init()`; TypeError if the number is no integer; ValueError if there is no such group or rank."""
    require_init("get_world_rank_from_group_rank")
    ranks = ranks_of(group)
    checks.whole("get_world_rank_from_group_rank: group_rank_id", group_rank_id)
    if not 0 <= group_rank_id < len(ranks):
        raise ApiValueError(
            f"get_world_rank_from_group_rank: group {group!r} has {len(ranks)} ranks; "
            f"there is no number {group_rank_id}"
        )
    return ranks[group_rank_id]


def get_group_rank_from_world_rank(world_rank_id: int, group: str) -> int:
    """Return the number in the group of a rank of the job. Raise as `get_world_rank_from_group_rank`."""
    require_init("get_group_rank_from_world_rank")
    ranks = ranks_of(group)
    checks.whole("get_group_rank_from_world_rank: world_rank_id", world_rank_id)
    check_member("get_group_rank_from_world_rank", "rank", world_rank_id, group)
    return ranks.index(world_rank_id)


def get_comm_name(group: str = GlobalComm.WORLD_COMM_GROUP) -> str:
    """Return the name of the group's communicator: the group's own. Raise as `get_group_size`."""
    require_init("get_comm_name")
    ranks_of(group)
    return group


def create_group(group: str, rank_ids: list[int], options: Any = None) -> None:
    """Create a group with its ranks numbered in the given order; every member makes the same call. Raise RuntimeError
    before `init()`; TypeError or ValueError if the name is taken, or the ranks are not different ranks of this job."""
    session = require_init("create_group")
    if not isinstance(group, str) or not group:
        raise ApiTypeError(f"create_group: the name must be a string, not {group!r}")
    if not isinstance(rank_ids, (list, tuple, range)):
        raise ApiTypeError(f"create_group: rank_ids must be a list of ranks, not {rank_ids!r}")
    ranks = tuple(rank_ids)
    if not ranks or len(set(ranks)) != len(ranks):
        raise ApiValueError(f"create_group: rank_ids {list(ranks)} must be different ranks, at least one")
    for rank in ranks:
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < session.size:
            raise ApiValueError(f"create_group: {rank!r} is no rank of a job of {session.size}")
    if group in WORLD_GROUPS:
        raise ApiValueError(f"create_group: {group!r} is the group of all ranks; choose another name")
    if session.groups.setdefault(group, ranks) != ranks:
        held = ranks_listed(session.groups[group], len(session.groups[group]))
        raise ApiValueError(f"create_group: there is a group {group!r} already, of {held}")


def destroy_group(group: str) -> None:
    """Delete a group. Raise RuntimeError before `init()`, ValueError for an unknown group or the world."""
    session = require_init("destroy_group")
    if group in WORLD_GROUPS:
        raise ApiValueError("destroy_group: the group of all ranks cannot be destroyed")
    ranks_of(group)
    del session.groups[group]


def get_process_group_ranks(group: str = GlobalComm.WORLD_COMM_GROUP) -> list[int]:
    """Return the ranks of a group, in its order. Raise as `get_group_size`."""
    require_init("get_process_group_ranks")
    return list(ranks_of(group))


def check_member(function: str, name: str, rank: int, group: str) -> tuple[int, ...]:
    """Return the ranks of a group. Raise ValueError if a rank is not one of them."""
    ranks = ranks_of(group)
    if rank not in ranks:
        held = ranks_listed(ranks, len(ranks))
        raise ApiValueError(f"{function}: {name} {rank} is not in group {group!r}, which has {held}")
    return ranks


def _on_this_host(session: state.Session, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return those of the ranks that run on this host: launchers number the ranks of a host consecutively."""
    first = session.rank - session.local_rank
    return tuple(rank for rank in ranks if first <= rank < first + session.local_size)


get_local_size = get_local_rank_size
