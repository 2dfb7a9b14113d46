"""Products with what follows them, whether the library joins it or a kernel works behind the product."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.fused.matmul import FusedMatMul
from tests.ops.cuda.cuda_chains import Case, tensor
from tests.ops.cuda.test_cuda_elementwise import Device, prepared

SHAPES = {"x": "24 40", "y": "40 56", "addend": "24 56", "bias": "56", "before": "24 56"}
ACTIVATED: dict[FusedMatMul, Sequence[str]] = {
    FusedMatMul(activation="gelu"): (),
    FusedMatMul(activation="gelu", bias=True, keeps_before=True): ("bias",),
    FusedMatMul(activation="gelu", addend=True): ("addend",),
    FusedMatMul(activation="gelu_gradient"): ("before",),
}


def activated_cases() -> list[Case]:
    """Products with every activation in several element types, of eighths: their sums are exact in whatever order a
    library takes them, and what is left is the error of the activation."""
    draw = np.random.default_rng(1).integers
    cases: list[Case] = []
    for op, names in ACTIVATED.items():
        for dtype in ("Float64", "Float32", "BFloat16"):
            types = tuple(tensor(f"{dtype} {SHAPES[name]}") for name in ("x", "y", *names))
            values = tuple((draw(-8, 9, type.shape) / 8).astype(type.dtype.numpy) for type in types)
            cases.append(Case(op, types, values))
    return cases


class Choosing(Device):
    """A GPU on which of several launches the one at `place` is taken."""

    place = 0

    def fastest(self, kind: Any, launches: Sequence[Callable[[], None]]) -> Callable[[], None]:
        return launches[self.place]


@pytest.mark.parametrize("place", [0, -1])
def test_activations_are_as_exact_as_the_element_type(tmp_path: Path, place: int) -> None:
    device = Choosing(tmp_path)
    device.place = place
    made = [(case, *prepared(device, case)) for case in activated_cases()]
    for case, inputs, results, launch in made:
        launch()
        case.check(results, inputs)


def test_products_alone_take_one_launch(tmp_path: Path) -> None:
    device = Choosing(tmp_path)
    case = Case(replace(FusedMatMul(), bias=True), tuple(map(tensor, ("Float64 24 40", "Float64 40 56", "Float64 56"))))
    inputs, results, launch = prepared(device, case)
    launch()
    case.check(results, inputs)
    assert not device.sources
