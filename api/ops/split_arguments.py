"""Arguments known when a network is compiled say where tensors are split."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiValueError
from mspc.api.ops.function_arguments import ints, least


def split_sizes(name: str, wanted: Any, size: int) -> tuple[Any, ...]:
    """The sizes of so many parts, of which the first ones are longer by one; of places between them (place, size).

    Raises:
        ValueError: there are less than one part, or what is listed are no integers.
    """
    if isinstance(wanted, int):
        count = least(name, "indices_or_sections", wanted, 1)
        return tuple(size // count + (i < size % count) for i in range(count))
    if not isinstance(wanted, tuple | list):
        raise ApiValueError(f"{name}(): indices_or_sections must be an integer, a tuple or a list, not {wanted!r}")
    places = [slice(None, place).indices(size)[1] for place in ints(name, "indices_or_sections", wanted)]
    return tuple((first, max(0, last - first)) for first, last in zip([0, *places], [*places, size], strict=True))
