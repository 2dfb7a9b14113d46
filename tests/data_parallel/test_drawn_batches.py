"""Random networks with loops, branches, equal layers and random masks: ranks in data parallel mode have the parameters,
optimizer states and rows of one device on the global batch."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.compiled_scripts import QUIET, CompileOptions, compile_target, verify_scale, verify_target
from tests.data_parallel.drawn_batches import TRAINING, DrawnBatches, check
from tests.judged_seeds import EQUAL
from tests.shares import crossed, share_of


@pytest.mark.share(3)
@pytest.mark.parametrize("training", TRAINING)
@pytest.mark.parametrize("number", range(share_of(12)))
def test_ranks_equal_one_device_on_the_global_batch(number: int, training: str) -> None:
    outcome = check(1000 + number, training)
    assert outcome.kind == EQUAL, outcome.message


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", [6, 153, 2082])
def test_one_row_per_rank(seed: int) -> None:
    """Rows in a dimension of size 1: of (2, 4) reshaped to (1, 8), of a mask (1, 1), and of a micro-batch."""
    outcome = check(seed)
    assert outcome.kind == EQUAL, outcome.message


NO_ALARM = [
    (1018, "cell"), (1033, "cell"), (1038, "cell"), (1072, "cell"), (1003, "in a loop"), (1004, "sums of a loop"),
    (1066, "parts"),
]  # fmt: skip


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("drawn", "judge", "is_folder"), crossed(NO_ALARM, [verify_target, verify_scale], [False, True])
)
def test_verify_raises_no_alarm(drawn: tuple[int, str], judge: Any, is_folder: bool, tmp_path: Path) -> None:
    """Networks that draw inside loops, branches and equal layers (ranks of 1033 and 1038 have one row each),
    gradients that are added over ranks inside a loop or are zero in the first step (1072), stacks of stacks (1066)."""
    net = DrawnBatches(*drawn)
    script, options = tmp_path / "net.py", CompileOptions(ranks=net.ranks, loudness=QUIET)
    script.write_text(net.sharded(str(tmp_path)))
    if is_folder:
        compile_target(str(script), replace(options, out=tmp_path / "out"))
    judge(str(tmp_path / "out" if is_folder else script), options, 0)
