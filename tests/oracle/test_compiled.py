"""A network computes what the same call computes outside of one: a drawn case of a judge's first name and of a share
of its other names."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor
from tests.oracle.judging import Judge, flat, public, unlike
from tests.oracle.test_judges import JUDGES
from tests.shares import is_taken


def call_of(judge: Judge, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    ours, function = judge.ours, public(name)

    def call(*tensors: Any) -> Any:
        return ours(function, *tensors, *arguments, **named)

    return call


KNOWN = {"ops.nonzero", "ops.argwhere", "ops.masked_select", "ops.unique", "ops.unique_consecutive",
         "ops.bincount", "mint.bincount", "Tensor.unique", "Tensor.masked_scatter"}  # fmt: skip
"""The questions of a network about tensors that are known when it is compiled: the numbers decide on the shape."""
CASES = [judge for judge in JUDGES if judge.names[0] not in KNOWN]


@pytest.mark.share(4)
@pytest.mark.parametrize("judge", CASES, ids=lambda judge: judge.names[0])
def test_compiled_equals_eager(judge: Judge) -> None:
    draw = random.Random(5)
    arrays = draw.choice(judge.inputs)
    arguments, named = draw.choice(list(judge.arguments)), draw.choice(list(judge.named))
    tensors = [Tensor(x) for x in arrays]
    for name in (name for place, name in enumerate(judge.names) if is_taken(place, 3)):
        call = call_of(judge, name, arguments, named)
        with np.errstate(all="ignore"):
            expected = call(*tensors)
            if tensors and all(isinstance(part, Tensor) for part in flat(expected)):
                assert unlike(mspc.jit(call)(*tensors), expected, 8) == "", name
