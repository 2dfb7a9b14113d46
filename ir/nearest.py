"""This module finds the known name that a mistyped one may have meant."""

from __future__ import annotations

from collections.abc import Iterable

MOST = 3
"""Names that are guessed at most."""


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that are most like `name`, the nearest first; those alone that differ in large letters only."""
    import difflib

    names = sorted(known)
    folded: dict[str, list[str]] = {}
    for each in names:
        folded.setdefault(each.casefold(), []).append(each)
    if name.casefold() in folded:
        return folded[name.casefold()]
    close = difflib.get_close_matches(name.casefold(), folded, MOST)
    close += [each for each in folded if each not in close and len(name) > 2 and name.casefold() in each]
    return [each for fold in close for each in folded[fold]][:MOST]


def did_you_mean(name: str, known: Iterable[str]) -> list[str]:
    """A note for an error about a name that nobody knows; none where no known name is like it."""
    found = [repr(each) for each in nearest(name, known)]
    if not found:
        return []
    return [f"did you mean {' or '.join(filter(None, (', '.join(found[:-1]), found[-1])))}?"]


def all_of(name: str, known: Iterable[str]) -> str:
    """All known names in one line, the nearest first, the others in order."""
    first = nearest(name, known)
    return ", ".join([*first, *sorted(set(known) - set(first))])
