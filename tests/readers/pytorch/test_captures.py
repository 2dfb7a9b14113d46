"""Steps that PyTorch runs, recorded and compared with the step of one device."""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from mspc.commands.captured import ranks_in
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch import placed
from mspc.readers.pytorch.captured import programs_of, read_rank, read_step
from mspc.readers.pytorch.captured_kinds import read_kinds
from tests.captures import SCRIPT, captured, shared
from tests.serving import SERVED, run_process, succeed
from tests.shares import share_of

pytest.importorskip("torch")


def verified(folder: Path, single: Path) -> "subprocess.CompletedProcess[str]":
    return run_process(*SERVED, "verify", "--scale", str(folder), "--against", str(single))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared("single", tmp_path_factory)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared("ranks", tmp_path_factory)


def test_ranks_compute_the_step_of_one_device(ranks: Path, single: Path) -> None:
    done = verified(ranks, single)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"equal: 122 values of 4 ranks of 1 kind", done.stdout)  # with 12 gradients in each of 2 steps


@pytest.mark.thorough
def test_parameters_that_fsdp_joins_are_small(tmp_path: Path) -> None:
    script = tmp_path / "wide.py"
    script.write_text(SCRIPT.read_text().replace("WIDTH, ROWS = 8,", "WIDTH, ROWS = 32,"))
    single, ranks = captured(tmp_path / "one", 1, 1, 1, script=script), tmp_path / "ranks"
    done = verified(captured(ranks, 2, 2, 1, script=script), single)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"layers.0.up.weight and 5 more +\(64, 32\) +\(8, 8\)", done.stdout)


@pytest.mark.share(2)
@pytest.mark.parametrize("fault", ["doubled sum", "divided twice"])
def test_faults_are_found(fault: str, single: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    doubled = fault == "doubled sum"
    folder = shared("wrong", tmp_path_factory) if doubled else captured(tmp_path / "ranks", 4, 2, 2, fault)
    done = verified(folder, single)
    assert done.returncode == 1, done.stdout
    assert "values of 4 ranks of 1 kind differ from one device" in done.stderr
    assert "their mean is compared" in done.stdout
    assert re.search(r"captured_training\.py:\d+", done.stderr)


@pytest.mark.thorough
def test_slices_of_uneven_sizes_are_compared(tmp_path: Path) -> None:
    one = captured(tmp_path / "one", 1, 1, 1, "", 10)
    cases = ((4, 1, ""), (2, 2, ""), (4, 1, "divided twice"))  # 10 rows: 3, 3, 3, 1 or 3, 2, 3, 2
    for data, tensor, fault in cases[: share_of(len(cases))]:
        folder = captured(tmp_path / f"{data} {tensor} {fault}", 4, data, tensor, fault, 10)
        done = verified(folder, one)
        assert done.returncode == bool(fault), done.stdout + done.stderr
    last = read_rank(tmp_path / "4 1 ", 3)
    assert placed.layout(last, (4,), "layers.0.up.weight", (1, 8), (10, 8)).dims == ((0,), ())
    with pytest.raises(MspcError, match=r"has shape \(2, 8\), and S\(0\) of \(10, 8\) is \(1, 8\) on rank 3"):
        placed.layout(last, (4,), "layers.0.up.weight", (2, 8), (10, 8))


def test_values_are_recorded_before_the_step(single: Path) -> None:
    weights = read_step(single / "rank_0.step").program.weights
    assert weights.tensors.keys() >= {"layers.0.up.weight", "exp_avg.layers.0.up.weight"}
    assert float(weights.read("step.layers.0.up.weight")) == 1.0  # one step makes the states


def test_nodes_have_lines_modules_and_groups(ranks: Path) -> None:
    step = read_step(ranks / "rank_3.step")
    assert (step.rank, step.ranks) == (3, 4)
    assert {"data 1-3", "tensor 2-3"} <= step.groups.keys()
    kinds = {node.target for node in step.program.graph.nodes}
    assert {"c10d._allgather_base_.default", "_c10d_functional.all_reduce.default"} <= kinds
    product = next(node for node in step.program.graph.nodes if node.target == "aten.addmm.default")
    assert product.scope == "layers.0.up"
    assert product.frames[0].file.endswith("captured_training.py")
    assert placed.mesh_of([step]) == (2, 2)


def test_derived_ranks_are_as_if_they_were_traced(single: Path, tmp_path: Path) -> None:
    shutil.copytree(single, tmp_path / "kinds")
    folder = captured(tmp_path / "kinds", 4, 4, 1)  # in place of the capture there
    every = captured(tmp_path / "every", 4, 4, 1, options=("--every-rank",))
    assert sorted(path.name for path in folder.iterdir()) == ["rank_0.step", "rank_2.step", "rank_3.step", "ranks.json"]
    derived, traced = read_rank(folder, 1), read_rank(every, 1)
    assert derived.groups == traced.groups
    assert derived.placements == traced.placements
    assert derived.program.graph == traced.program.graph
    (kind,) = read_kinds(folder)
    ((ranks, groups, _),) = programs_of(folder, kind)
    assert ranks == (0, 1, 2, 3)
    assert [*zip(*groups.values(), strict=True)] == [tuple(read_rank(every, rank).groups.values()) for rank in range(4)]
    (folder / "rank_0.step").rename(tmp_path / "rank_0.step")
    (folder / "rank_2.step").rename(folder / "rank_0.step")
    with pytest.raises(MspcError, match=r"rank_0.step is of rank 2, not of rank 0"):
        read_rank(folder, 0)


@pytest.mark.thorough
def test_the_second_step_of_a_loop_is_captured(tmp_path: Path) -> None:
    loop = SCRIPT.with_name("captured_loop.py")
    for ranks in (1, 2):
        command = [*SERVED, "capture", str(loop), "--ranks", str(ranks), "--out", str(tmp_path / str(ranks))]
        done = succeed(*command)
    step = read_step(tmp_path / "2" / "rank_0.step")
    kinds = Counter(node.target for node in step.program.graph.nodes)
    assert kinds["aten.addmm.default"] == 4  # two layers, gradients of two batches
    assert kinds["_c10d_functional.all_reduce.default"] == 8
    assert kinds["aten.clamp.default"] == 1  # of the norm
    assert {each.qualified for each in step.program.inputs if each.kind == "parameter"} >= {"0.weight", "2.bias"}
    done = verified(tmp_path / "2", tmp_path / "1")
    assert done.returncode == 0, done.stdout + done.stderr
    command = [*SERVED, "capture", str(loop), "--out", str(tmp_path / "item"), "--", "item"]
    done = run_process(*command, status=2)
    assert "a number of the program depends on data" in done.stderr
    assert re.search(r"captured_loop\.py.*, line \d+", done.stderr)


def edited(folder: Path, rank: int, change: dict[str, object]) -> None:
    path = folder / f"rank_{rank}.step"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members["step/capture.json"]) | change
    members["step/capture.json"] = json.dumps(about).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_mistakes(ranks: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    for rank in range(2):
        shutil.copy(ranks / f"rank_{rank}.step", folder)
    for command, said in (
        (["verify", "--scale", str(folder)], "is a capture, and says nothing of one device"),
        (["verify", "--scale", str(folder), "--against", str(folder)], "has 2 ranks, and one device is needed"),
        (["verify", "--scale", str(folder), "--against", str(tmp_path)], "is no folder of mspc capture"),
        (["compile", str(folder), "--ranks", "4"], "was captured on 2 ranks, not on 4"),
        (["verify", str(SCRIPT), "--against", "jax"], "--against must be torch, not 'jax'"),
    ):
        done = run_process(*SERVED, *command)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    edited(folder, 1, {"version": 9})
    with pytest.raises(MspcError, match="is of version 9 of captures; mspc reads version 2"):
        read_step(folder / "rank_1.step")
    edited(folder, 1, {"version": 2, "groups": {"0": {"ranks": [0, 7]}}})
    with pytest.raises(MspcError, match="group '0' is 7, not a whole number from 0 to 3"):
        read_step(folder / "rank_1.step")
    (folder / "rank_1.step").rename(folder / "rank_2.step")
    with pytest.raises(MspcError, match="has no file of rank 1"):
        ranks_in(folder)


def test_errors_of_the_script_have_its_frames_alone(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    for text, said in (("1 / 0\n", "error: rank 0: ZeroDivisionError: division"), ("", "ended without a call of")):
        script.write_text(text)
        done = run_process(*SERVED, "capture", str(script), "--out", str(tmp_path / "out"), status=2)
        assert said in done.stderr
        assert not re.search("Traceback|runpy", done.stderr)
        assert not (tmp_path / "out").exists()


def test_the_module_needs_no_dependency_but_torch() -> None:
    code = "import sys, mspc.capture; print([n for n in ('numpy', 'lark', 'typer') if n in sys.modules])"
    done = run_process(sys.executable, "-P", "-c", code)
    assert done.stdout.strip() in ("[]", "['numpy']"), done.stdout + done.stderr  # numpy if torch imports it
