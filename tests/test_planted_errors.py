"""Errors that are planted in the code are found by `mspc verify`; `planted_errors.py` alone runs all of them."""

from functools import partial
from pathlib import Path

import pytest

from tests.mutation.processes import forked
from tests.planted import PACKAGE, Planted, outcomes, plant
from tests.planted_errors import GROUPS, NO_ERROR, SAMPLE, cases
from tests.planted_networks import NETWORKS
from tests.shares import is_taken

EVERY = list({id(error): error for group in GROUPS for error in group.errors}.values())


@pytest.mark.parametrize("planted", EVERY, ids=lambda planted: planted.name)
def test_the_text_of_an_error_stands_once(planted: Planted) -> None:
    text = (PACKAGE / planted.file).read_text(encoding="utf-8")
    assert text.count(planted.old) == 1
    assert planted.new != planted.old


def test_every_error_has_a_name_and_a_network() -> None:
    assert len({planted.name for planted in EVERY}) == len(EVERY)
    assert {name for group in GROUPS for name in group.networks} == {*NETWORKS, SAMPLE}
    assert {planted.free[0] for planted in EVERY if planted.free} == {SAMPLE, "parallel", "folded"}


def wrong_step(planted: Planted, name: str) -> bool:
    """Whether a training step differs from its judge's in this process, which gets the error."""
    import torch

    from tests.oracle.step_cases import cases as steps
    from tests.oracle.step_cases import judged

    plant(planted)
    (case,) = [case for case in steps() if case.name == name]
    return not judged(case, torch).same


def test_an_error_in_an_update_is_found() -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
    by_name = {planted.name: planted for planted in EVERY}
    wanted = [("second-moment-with-beta1", "nn.Adam"), ("clip-without-rate", "nn.LARS with use_clip")]
    calls = [partial(wrong_step, by_name[planted], name) for planted, name in wanted]
    assert dict(forked(calls, 1)) == {0: True, 1: True}


def test_errors_are_found(tmp_path: Path) -> None:
    """Every network and every part of the comparison has some errors in the daily run."""
    notes = {f"{group.networks[0]}: ranks: {name}": note for group in GROUPS for name, note in group.notes.items()}
    daily = {NO_ERROR, *(error.name for error in EVERY if error.daily)}
    taken = [
        (case, wanted) for case, wanted in cases(tmp_path)
        if is_taken(1) or (
            case.name.rpartition(": ")[2] in daily and SAMPLE not in case.name
            and (case.judge == "ranks" or (case.name.startswith("parted") and NO_ERROR not in case.name))
        )
    ]  # fmt: skip
    wanted = {case.name: want for case, want in taken}
    found = {case.name: (kind, said) for case, kind, said in outcomes([case for case, _ in taken])}
    assert len(found) == len(taken) > 6
    assert {name: said for name, (kind, said) in found.items() if kind != wanted[name]} == {}
    assert {name: said for name, (_, said) in found.items() if notes.get(name, "") not in said} == {}
