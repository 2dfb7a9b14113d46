"""What a file of JSON says is taken out of it here entry by entry, each of the kind that it has to be.

All functions raise ValueError with the entry that is wrong; `where` says in words what it belongs to.
"""

from __future__ import annotations

from typing import Any, cast

MOST_DIMENSIONS = 64
LARGEST_SIZE = 1 << 62


def object_in(value: Any, where: str) -> dict[str, Any]:
    """An object."""
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r:.60}, not an object")
    return cast(dict[str, Any], value)


def list_in(value: Any, where: str) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise ValueError(f"{where} is {value!r:.60}, not a list")
    return cast(list[Any], value)


def entry(owner: dict[str, Any], name: str, where: str) -> Any:
    """What an object has under a name."""
    try:
        return owner[name]
    except KeyError:
        raise ValueError(f"{where} has no {name!r}") from None


def text_in(value: Any, where: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise ValueError(f"{where} is {value!r:.60}, not a text")
    return value


def flag_in(value: Any, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{where} is {value!r:.60}, not true or false")
    return value


def whole_in(value: Any, where: str, least: int = -LARGEST_SIZE, most: int = LARGEST_SIZE) -> int:
    """A whole number."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where} is {value!r:.60}, not a whole number from {least} to {most}")
    return value


def tagged(value: Any, where: str) -> tuple[str, Any]:
    """(tag, content) of an object that has one entry, as {"as_int": 3} has. Entries that are null do not count."""
    found = [(tag, content) for tag, content in object_in(value, where).items() if content is not None]
    if len(found) != 1:
        raise ValueError(f"{where} is {value!r:.60}, not an object with one entry")
    return found[0]
