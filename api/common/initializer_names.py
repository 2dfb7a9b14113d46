"""Scripts give an initializer as a name, a number, a class or an object; this module finds what each means."""

from __future__ import annotations

import numbers
from typing import Any

from mspc.api.common.initializers import (
    Constant,
    HeNormal,
    HeUniform,
    Initializer,
    Normal,
    One,
    TruncatedNormal,
    Uniform,
    XavierNormal,
    XavierUniform,
    Zero,
)
from mspc.api.common.shaped_initializers import Dirac, Identity, Orthogonal, Sparse, VarianceScaling
from mspc.api.errors import ApiTypeError, ApiValueError

__all__: tuple[str, ...] = ()

NAMED: dict[str, type[Initializer]] = {
    "zeros": Zero, "zero": Zero, "ones": One, "one": One, "normal": Normal, "uniform": Uniform,
    "truncatednormal": TruncatedNormal, "trunc_normal": TruncatedNormal,
    "xavieruniform": XavierUniform, "xavier_uniform": XavierUniform, "xaviernormal": XavierNormal,
    "xavier_normal": XavierNormal, "heuniform": HeUniform, "he_uniform": HeUniform, "henormal": HeNormal,
    "he_normal": HeNormal, "identity": Identity, "orthogonal": Orthogonal, "dirac": Dirac, "sparse": Sparse,
    "variancescaling": VarianceScaling, "variance_scaling": VarianceScaling,
}  # fmt: skip


def as_initializer(init: Any) -> Initializer:
    """The Initializer that a name, a number, a class or an object stands for.

    Raises:
        ValueError: no initializer has this name. TypeError: `init` is nothing of these.
    """
    if isinstance(init, Initializer):
        return init
    if isinstance(init, type) and issubclass(init, Initializer):
        return init()
    if isinstance(init, str):
        found = NAMED.get(init.lower())
        if found is None:
            raise ApiValueError(f"unknown initializer {init!r}; known are {', '.join(sorted(NAMED))}")
        try:
            return found()
        except TypeError:
            raise ApiValueError(f"initializer {init!r} needs arguments: use {found.__name__}(...)") from None
    if isinstance(init, numbers.Number):
        return Constant(init)
    raise ApiTypeError(f"an initializer is a name, a number or an Initializer, not {type(init).__name__}")
