"""The table of all kinds, and which kinds are rows in another form: those that write into their first argument."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from mspc.readers.pytorch.kinds.attention import ATTENTION
from mspc.readers.pytorch.kinds.bags import BAGS
from mspc.readers.pytorch.kinds.bookkeeping import BOOKKEEPING
from mspc.readers.pytorch.kinds.complex import COMPLEX
from mspc.readers.pytorch.kinds.creation import CREATION
from mspc.readers.pytorch.kinds.elementwise import ELEMENTWISE
from mspc.readers.pytorch.kinds.experts import EXPERTS
from mspc.readers.pytorch.kinds.images import IMAGES
from mspc.readers.pytorch.kinds.indexing import INDEXING
from mspc.readers.pytorch.kinds.kind import NEEDED, Kind, KindArgument
from mspc.readers.pytorch.kinds.losses import LOSSES
from mspc.readers.pytorch.kinds.matrices import MATRICES
from mspc.readers.pytorch.kinds.norms import NORMS
from mspc.readers.pytorch.kinds.products import PRODUCTS
from mspc.readers.pytorch.kinds.random import RANDOM
from mspc.readers.pytorch.kinds.recurrent import RECURRENT
from mspc.readers.pytorch.kinds.reductions import REDUCTIONS
from mspc.readers.pytorch.kinds.shapes import SHAPES

THEMES: tuple[Iterable[list[Kind]], ...] = (
    ELEMENTWISE, SHAPES, CREATION, REDUCTIONS, PRODUCTS, NORMS, ATTENTION, INDEXING, IMAGES, LOSSES, RANDOM,
    EXPERTS, BAGS, COMPLEX, MATRICES, RECURRENT, BOOKKEEPING,
)  # fmt: skip

OVERWRITTEN = "self"
"""What the first argument of a kind is called that writes into it."""
GIVEN = "out"
"""What the tensor is called, and the overload, where a kind writes its result into one that it is given."""
STOPPED = "aten.detach_.default"
"""The kind that takes a tensor's gradient away, and leaves its numbers."""


@cache
def kinds() -> dict[str, Kind]:
    """The rows by the names of their kinds."""
    return {kind.name: kind for theme in THEMES for rows in theme for kind in rows}


def kind_of(name: str) -> Kind | None:
    """The row of a kind; that of `aten.add.Tensor` for `aten.add_.Tensor`, which writes its first argument, for
    `aten.add.out`, which writes its last one, and for `aten.t_.default`, after which that has another shape. None where
    there is none."""
    found = kinds().get(name)
    if found is not None:
        return found
    library, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    if overload == GIVEN:
        plain = kinds().get(f"{library}.{operator}.default") or kinds().get(f"{library}.{operator}.Tensor")
        if plain is None or plain.writes:
            return None
        given = KindArgument(GIVEN, NEEDED, is_read=False)
        return replace(plain, name=name, arguments=(*plain.arguments, given), put=None, writes=(GIVEN,))
    if not operator.endswith("_") or operator.endswith("__"):
        return None
    plain = kinds().get(f"{library}.{operator[:-1]}.{overload}")
    if plain is None:
        return None
    first = replace(plain.arguments[0], name=OVERWRITTEN)
    if plain.put is not None and name != STOPPED:  # another shape of the same elements, which stay
        return replace(plain, arguments=(first, *plain.arguments[1:]))
    return replace(plain, name=name, arguments=(first, *plain.arguments[1:]), put=None, writes=(OVERWRITTEN,))
