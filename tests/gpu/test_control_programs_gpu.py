"""Random programs with control flow on a GPU; `python -m tests.control_programs SEED COUNT --gpu` looks at more."""

from importlib.util import find_spec

import pytest

from tests.control_programs import check, seeds_of
from tests.judged_seeds import EQUAL
from tests.ops.cuda.cuda_emulator import NEEDED

pytestmark = pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install -e '.[oracle]'")


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", seeds_of(5, 3))
def test_steps_are_those_of_plain_python(seed: int) -> None:
    outcome = check(seed, gpu=True)
    assert outcome.kind == EQUAL, outcome.message


@pytest.mark.share(2)
@needs_torch
@pytest.mark.parametrize("seed", seeds_of(6, 2))
def test_gradients_are_those_of_pytorch(seed: int) -> None:
    outcome = check(seed, gradients=True, gpu=True)
    assert outcome.kind == EQUAL, outcome.message
