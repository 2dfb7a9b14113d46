"""Names that are not taken yet."""

from __future__ import annotations


def free_name(wanted: str, taken: set[str]) -> str:
    """The wanted name, or the first of NAME_1, NAME_2, ... that is not taken; from now on it is."""
    name, count = wanted, 0
    while name in taken:
        count += 1
        name = f"{wanted}_{count}"
    taken.add(name)
    return name
