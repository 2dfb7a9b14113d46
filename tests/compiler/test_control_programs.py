"""Random programs with nested control flow: judges that agree with each other, and mspc beside them."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from tests.control.plain import Plain
from tests.control.program import ControlProgram
from tests.control.watched import Outcome, watched
from tests.control_programs import check, compare, judged, seeds_of
from tests.judged_seeds import EQUAL, FAILS, HANGS, Different
from tests.shares import share_of

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[oracle]'")


def outcomes(count: int = 12, **options: object) -> list[tuple[int, str, str]]:
    """Differences among some programs; `python -m tests.control_programs` looks at more of them."""
    found = [check(seed, **options) for seed in seeds_of(3, count)]  # type: ignore[arg-type]
    return [(each.seed, each.kind, each.message) for each in found if each.kind != EQUAL]


def test_values_are_those_of_plain_python() -> None:
    assert outcomes() == []


@needs_torch
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_gradients_are_those_of_pytorch(ranks: int) -> None:
    assert outcomes(share_of(4, 4), ranks=ranks, gradients=True) == []


def test_a_program_is_the_same_from_the_same_seed() -> None:
    texts = [ControlProgram(seed).text for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_another_number_is_found() -> None:
    expected = judged(seeds_of(3, 1)[0], 1, False, 3).expected
    moved = {name: array + np.asarray(1, array.dtype) for name, array in expected.items()}
    with pytest.raises(Different, match="away"):
        compare(moved, expected, "here")
    with pytest.raises(Different, match="float32"):
        compare({name: array.astype(np.float32) for name, array in expected.items()}, expected, "here")
    compare(expected, expected, "here")


def test_conditions_near_a_tie_are_noted() -> None:
    plain = Plain(ControlProgram(1))
    tensor = plain.namespace["Tensor"]
    assert bool(tensor(0.5, "float64") < tensor(0.50025, "float64"))
    assert plain.margins.least == pytest.approx(0.00025)
    assert plain.margins.asked == 1


def test_what_hangs_or_dies_is_named_and_the_rest_goes_on() -> None:
    def work(seed: int) -> Outcome:
        if seed == 2:
            while True:
                pass
        if seed == 4:
            raise SystemExit(3)
        return Outcome(seed, EQUAL)

    found = {each.seed: each for each in watched(work, range(6), 2, 1.0, HANGS)}
    assert sorted(found) == list(range(6))
    assert {seed for seed, each in found.items() if each.kind == EQUAL} == {0, 1, 3, 5}
    assert found[2].message == "takes more than 1 s"
    assert found[4].message == "ended its process: 3"
    assert FAILS != HANGS
