"""Every public name of ops, mint and Tensor has a judge, is compared on the samples of PyTorch's database, or has a
reason."""

from __future__ import annotations

from mspc import mint, ops
from mspc.mindspore_api.ops.method_table import method_names
from tests.oracle.judging import public
from tests.oracle.test_counterparts import NAMES
from tests.oracle.test_database import listed
from tests.oracle.test_judges import JUDGES
from tests.test_omissions import excepted

THROUGH_FUNCTIONS = "rare in networks; tests/oracle judges the functions that scripts call"
"""The reason in tests/omissions.toml why these operators have no counterpart."""


def names() -> set[str]:
    found = {f"ops.{name}" for name in dir(ops)} | {f"mint.{name}" for name in dir(mint)}
    return found | {f"Tensor.{name}" for name in method_names()}


def in_place() -> set[str]:
    """Forms that change a tensor: tests/mindspore_api/common/test_changes_in_place.py compares them."""
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
    derived = {name for name in names() if name.removesuffix("Grad") in names() - {name}}
    others = excused | derived | judged_on_samples | another_names(judged | {*listed()}) | {*listed()}
    assert sorted(names() - judged - others) == []
    assert sorted((judged | {*listed()}) & (excused - in_place())) == [], "they have a judge and a reason to have none"
    assert sorted(excused - names()) == [], "there is no such name"
    assert all(callable(public(name)) for name in judged)
