"""The names under which scripts ask for initializers."""

from __future__ import annotations

from mspc.api.common.initial_values import (
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

__all__: tuple[str, ...] = ()

NAMED: dict[str, type[Initializer]] = {
    "zeros": Zero, "zero": Zero, "ones": One, "one": One, "normal": Normal, "uniform": Uniform,
    "truncatednormal": TruncatedNormal, "trunc_normal": TruncatedNormal,
    "xavieruniform": XavierUniform, "xavier_uniform": XavierUniform, "xaviernormal": XavierNormal,
    "xavier_normal": XavierNormal, "heuniform": HeUniform, "he_uniform": HeUniform, "henormal": HeNormal,
    "he_normal": HeNormal, "identity": Identity, "orthogonal": Orthogonal, "dirac": Dirac, "sparse": Sparse,
    "variancescaling": VarianceScaling, "variance_scaling": VarianceScaling,
}  # fmt: skip
