"""Public functions, operators and tensor methods against PyTorch: every name with every case of its judge, eager and
compiled; every public name has a judge or a reason."""

import random
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor, mint, ops
from mspc.mindspore_api.ops.method_table import method_names
from tests.oracle.judging import Judge, differences, flat, public, unlike
from tests.oracle.test_counterparts import NAMES
from tests.oracle.test_database import listed
from tests.shares import is_taken
from tests.test_omissions import excepted

TABLES = """elementwise reductions shapes products special combinations derived simple placed matrices""".split()
JUDGES: list[Judge] = [judge for table in TABLES for judge in import_module(f"tests.oracle.{table}").JUDGES]
CASES = [pytest.param(judge, id=f"{index} {' '.join(judge.names)}") for index, judge in enumerate(JUDGES)]


@pytest.mark.share(3)
@pytest.mark.parametrize("judge", CASES)
def test_equal_to_the_judge(judge: Judge) -> None:
    assert differences(judge) == []


def call_of(judge: Judge, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    ours, function = judge.ours, public(name)

    def call(*tensors: Any) -> Any:
        return ours(function, *tensors, *arguments, **named)

    return call


KNOWN = {"ops.nonzero", "ops.argwhere", "ops.masked_select", "ops.unique", "ops.unique_consecutive",
         "ops.bincount", "mint.bincount", "Tensor.unique", "Tensor.masked_scatter"}  # fmt: skip
"""The questions of a network about tensors that are known when it is compiled: the numbers decide on the shape."""
COMPILED_CASES = [judge for judge in JUDGES if judge.names[0] not in KNOWN]


@pytest.mark.share(4)
@pytest.mark.parametrize("judge", COMPILED_CASES, ids=lambda judge: judge.names[0])
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


THROUGH_FUNCTIONS = "rare in networks; tests/oracle judges the functions that scripts call"
"""The reason in tests/omissions.toml why these operators have no counterpart."""


def names() -> set[str]:
    found = {f"ops.{name}" for name in dir(ops)} | {f"mint.{name}" for name in dir(mint)}
    return found | {f"Tensor.{name}" for name in method_names()}


def in_place() -> set[str]:
    """Forms that change a tensor: tests/mindspore_api/common/test_tensor_views.py compares them."""
    return {name for name in names() if name.endswith("_")}


def another_names(judged: set[str]) -> set[str]:
    """Names of ops and mint that stand for an object that is judged under another name."""
    objects = {id(getattr(ops, name[4:])) for name in judged if name.startswith("ops.")}
    found = {f"{place}.{name}": getattr(module, name) for place, module in (("ops", ops), ("mint", mint))
             for name in dir(module)}  # fmt: skip
    return {name for name, value in found.items() if id(value) in objects}


def test_every_public_name_has_a_judge_or_a_reason() -> None:
    judged = {name for judge in JUDGES for name in judge.names}
    through_functions = excepted()["without_counterpart"][THROUGH_FUNCTIONS]
    judged_on_samples = {f"ops.{name}" for name in (*NAMES, *through_functions)}  # tests/oracle/test_counterparts.py
    excused = {name for names in excepted()["without_judge"].values() for name in names} | in_place()
    every = names()
    derived = {name for name in every if name.endswith("Grad") and name.removesuffix("Grad") in every}
    others = excused | derived | judged_on_samples | another_names(judged | {*listed()}) | {*listed()}
    assert sorted(every - judged - others) == []
    assert sorted((judged | {*listed()}) & (excused - in_place())) == [], "they have a judge and a reason to have none"
    assert sorted(excused - every) == [], "there is no such name"
    assert all(callable(public(name)) for name in judged)
