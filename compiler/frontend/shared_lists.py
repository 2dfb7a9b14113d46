"""Lists and dicts that a loop changes in place and then replaces, while something else has them, too.

Only the first turn changes such a list. A loop that does the same in all of its turns cannot carry what is left there:
it is a mistake of the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mspc.compiler.frontend.program_state import ProgramState
from mspc.compiler.frontend.values import Frame

Key = tuple[tuple[str, Any], tuple[Any, ...]]
"""The place of a value, and the path from there to one of its entries."""


def shared_and_replaced(state: ProgramState, caller: Frame | None, carried: Iterable[Key]) -> Any:
    """A list or dict that a loop changes and replaces, and that is elsewhere, too; None where there is none.

    state: of the program ahead of the loop. caller: of the function that the loop is in. carried: all that it changes.
    """
    keys = list(carried)
    changed = {place[1] for place, _ in keys if place[0] == "contents"}
    replaced = {(place, path[:length]) for place, path in keys for length in range(len(path))}
    if not changed:
        return None
    held = _Held(state, replaced)
    for name, value in state.names.items():
        held.visit(value, ("name", name), ())
    for key, value in state.attributes.items():
        held.visit(value, ("attribute", key), ())
    while caller is not None:
        for value in caller.locals.values():
            held.visit(value, ("caller", None), ())
        caller = caller.caller
    return next((held.kept[key] for key in held.kept if key in changed & held.lost), None)


class _Held:
    """kept: the lists and dicts that something has when the loop replaced some, by their identity. lost: of those that
    it replaced somewhere."""

    def __init__(self, state: ProgramState, replaced: set[Key]) -> None:
        self.state, self.replaced = state, replaced
        self.kept: dict[int, Any] = {}
        self.lost: set[int] = set()

    def visit(self, value: Any, place: tuple[str, Any], path: tuple[Any, ...]) -> None:
        """A value at the end of a path; the entries of a list that stays have places of their own."""
        if isinstance(value, list | dict):
            key = id(value)
            if (place, path) in self.replaced:
                self.lost.add(key)
            elif key in self.kept:
                return
            else:
                self.kept[key] = value
                place, path = ("contents", key), ()
            value = self.state.contents.get(key, value)
        if isinstance(value, dict):
            for key, entry in value.items():
                self.visit(entry, place, (*path, key))
        elif isinstance(value, list | tuple):
            for index, entry in enumerate(value):
                self.visit(entry, place, (*path, index))
