"""This module knows groups of ranks by name, and which calls need `init()` first."""

from __future__ import annotations

from mspc.api import state
from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.sharding.groups import WORLD_GROUPS


def require_init(function: str) -> state.Session:
    """The session, for a function that needs communication. Raises RuntimeError before `init()`."""
    session = state.current()
    if not session.initialized:
        raise ApiRuntimeError(f"{function}() was called before init()", ["call mindspore.communication.init() first"])
    return session


def ranks_of(group: str) -> tuple[int, ...]:
    """The ranks of a group, in its order.

    Raises:
        TypeError: the name is no string. ValueError: there is no such group.
    """
    if not isinstance(group, str):
        raise ApiTypeError(f"the name of a group must be a string, not {group!r}")
    session = state.current()
    if group in WORLD_GROUPS:
        return tuple(range(world_size(session)))
    if group not in session.groups:
        known = ", ".join([WORLD_GROUPS[0], *session.groups])
        raise ApiValueError(f"there is no group {group!r}; known are {known}")
    return session.groups[group]


def listed(ranks: tuple[int, ...]) -> str:
    """Ranks in messages: "rank 3" or "ranks 0, 2"."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"


def world_size(session: state.Session) -> int:
    """All ranks of the job; before a launcher says, as many as the script's device_num."""
    return session.size if session.launched else session.parallel.get("device_num") or session.size
