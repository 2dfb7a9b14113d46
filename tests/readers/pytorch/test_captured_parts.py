"""Experts on ranks of their own and slices of a sequence, recorded from PyTorch and compared with one device."""

import re
from pathlib import Path

import pytest

from tests.readers.pytorch.test_captures import captured, verified

pytest.importorskip("torch")
SCRIPT = Path(__file__).parent / "captured_parts.py"


@pytest.fixture(scope="module")
def single(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captured(tmp_path_factory.mktemp("parts") / request.param, 1, request.param, script=SCRIPT)


@pytest.mark.share(4)
@pytest.mark.parametrize("single", ["experts", "counted", "context", "flex"], indirect=True)
def test_parts_compute_the_step_of_one_device(single: Path, tmp_path: Path) -> None:
    done = verified(captured(tmp_path / "ranks", 2, single.name, script=SCRIPT), single)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "their mean is compared" in done.stdout


@pytest.mark.share(5)
@pytest.mark.parametrize(("single", "fault", "line"), [
    ("experts", "order", r"back = back.reshape\(sent.shape\)[\s\S]*runs Transpose before it, and these ranks do not"),
    ("experts", "scale", r"parameter.grad /= [\s\S]*2 times too large"),
    ("counted", "order", r"return x \+ \(exchanged\(back\)"),
    ("context", "offset", r"x = x \+ self.places\[begin : "),
    ("flex", "offset", r"x = x \+ self.places\[begin : "),
], indirect=["single"])  # fmt: skip
def test_a_fault_is_found_at_its_line(single: Path, fault: str, line: str, tmp_path: Path) -> None:
    done = verified(captured(tmp_path / "ranks", 2, single.name, fault, script=SCRIPT), single)
    assert done.returncode == 1, done.stdout
    assert re.search(rf"captured_parts.py:\d+: error: [^\n]*\n +{line}", done.stderr), done.stderr
