"""The quick start on eight ranks, under mpirun and simulated, beside one device that gets all rows.

The sample of checkpoints: a run that resumes on other ranks ends where one ends that nobody has ended.
The sample of checkpoints under `mspc launch --max-restarts`.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.serving import HANG, SERVED, succeed

SHARDED = "ops.MatMul().shard(((2, 4), (4, 1)))"
ROWS = "inputs = np.random.rand(batch, in_dim)"
LABELS = "labels = np.random.rand(batch, out_dim)"
SAME_ROWS = {
    ROWS: "inputs = np.tile(np.random.rand(batch // 8, in_dim), (8, 1))",
    LABELS: "labels = np.tile(np.random.rand(batch // 8, out_dim), (8, 1))",
}
OWN_ROWS = {
    ROWS: "inputs = np.random.rand(batch * 8, in_dim)[batch * get_rank() : batch * (get_rank() + 1)]",
    LABELS: "labels = np.random.rand(batch * 8, out_dim)[batch * get_rank() : batch * (get_rank() + 1)]",
}
ONE_DEVICE = {SHARDED: "ops.MatMul()", "BATCH = 2": "BATCH = 16"}


def run(folder: Path, source: str, *arguments: str) -> list[tuple[str, str]]:
    """(`epoch: E step: S`, loss) of every line that the script printed."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(source)
    done = succeed(*SERVED, "run", "net.py", *arguments, cwd=folder)
    return re.findall(r"^(epoch: \d+ step: \d+), loss is (\S+)$", done.stdout, re.MULTILINE)


def edited(source: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new)
    return source


@pytest.fixture(scope="module")
def source(root: Path) -> str:
    return (root / "samples/quickstart/net.py").read_text()


@pytest.fixture(scope="module")
def alone(source: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[tuple[str, str]]]:
    """The output of one device with a feed."""

    @cache
    def printed(feed: str) -> list[tuple[str, str]]:
        one = edited(edited(source, ONE_DEVICE), SAME_ROWS if feed == "as the tutorial" else {})
        return run(tmp_path_factory.mktemp("one"), one, "--ranks", "1")

    return printed


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("feed", "launch"),
    [("as the tutorial", ("--simulate",)), ("own rows", ("--simulate",)), ("own rows", ())],
    ids=["as the tutorial-simulated", "own rows-simulated", "own rows-mpirun"],
)
def test_eight_ranks_train_like_one_device(
    source: str, alone: Callable[[str], list[tuple[str, str]]], tmp_path: Path, feed: str, launch: tuple[str, ...]
) -> None:
    """Under mpirun with rows of each rank's own, which show all that the tutorial's equal rows do."""
    changes = {} if feed == "as the tutorial" else OWN_ROWS
    lines = run(tmp_path / "eight", edited(source, changes), "--ranks", "8", *launch)
    expected = alone(feed)
    assert len(lines) == 8 * 20
    assert len(expected) == 20
    losses = dict(lines)
    assert set(lines) == set(losses.items()), "the ranks print different losses"
    mine, theirs = (np.array([float(d[step]) for step, _ in expected]) for d in (losses, dict(expected)))
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert (np.diff(mine) < 0).all()


def test_rank_zero_multiplies_its_slices_and_adds_over_its_row(source: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(source)
    done = succeed(*SERVED, "compile", "net.py", "--ranks", "8", cwd=tmp_path)
    assert "2.4 KiB sent per step" in done.stdout
    text = next((tmp_path / "saved_graph/rank_0").glob("*_execute_*.ir")).read_text()
    nodes = re.findall(r"^  %\d+.* = (\w+)\(.*\n      : (.*)$", text, re.MULTILINE)
    at = next(i for i, (op, _) in enumerate(nodes) if op == "MatMul")
    assert nodes[at][1] == (
        "(<Tensor[Float32], (8, 8)>, <Tensor[Float32], (8, 16)>) -> (<Tensor[Float32], (8, 16)>)"
    )
    assert nodes[at + 1][0] == "ReduceScatter"
    following = text.split(" = MatMul(")[1].split(" = ReduceScatter(")[1].split("\n")[0]
    assert "rank_list: (0, 1, 2, 3)" in following
    assert re.search(r"_w: <Ref\[Tensor\[Float32\]\], \(8, 16\), ref_key=w>", text)


def test_going_on_with_other_ranks(root: Path, tmp_path: Path, commands: dict[str, str]) -> None:
    shutil.copytree(root / "samples/checkpoints", tmp_path / "sample", ignore=shutil.ignore_patterns("CKP*"))
    done = succeed("sh", "run.sh", "--simulate", cwd=tmp_path / "sample", env=commands)
    assert "resumes after epoch 2 step 3: checkpoints/CKP-2_3" in done.stdout
    assert "10 tensors, apart by " in done.stdout


MSPC = [sys.executable, "-m", "mspc"]


@pytest.mark.usefixtures("own_folder")
def test_a_run_whose_rank_is_killed_ends_as_an_undisturbed_one(samples: Path) -> None:
    text = (samples / "checkpoints/train.py").read_text()
    behind = "        if run_context.original_args().cur_step_num >= asked.steps:\n"
    assert behind in text
    killed = (
        "        if os.environ.get('MSPC_RESTARTS') == '0' and run_context.original_args().cur_step_num == 11:\n"
        "            if os.environ['RANK_ID'] == '1':\n"
        "                os.kill(os.getpid(), 9)\n"
    )
    Path("train.py").write_text("import os\n" + text.replace(behind, killed + behind))
    options = ["train.py", "--tensor", "2", "--steps", "16"]
    done = subprocess.run(
        [*MSPC, "launch", "--worker_num", "2", "--join", "True", "--max-restarts", "1", "--tail_worker_log", "0",
         *options, "--directory", "kept"],
        capture_output=True, text=True, check=False, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "error: rank 1 ended the job with status " in done.stderr
    assert "note: restart 1 of 1" in done.stderr
    lines = done.stdout.splitlines()
    resumed = [number for number, line in enumerate(lines) if line.startswith("resumes after epoch 2 step ")]
    assert len(resumed) == 1
    undisturbed = subprocess.run(
        [*SERVED, "run", "train.py", "--ranks", "2", "--simulate", "--only-rank", "0", "--", *options[1:],
         "--directory", "others"],
        capture_output=True, text=True, check=True, timeout=HANG,
    )  # fmt: skip
    expected = [line for line in undisturbed.stdout.splitlines() if line.startswith("epoch")]
    assert len(expected) == 16
    assert lines[resumed[0] + 1 :] == expected[resumed[0] + 1 - len(lines) :]
