"""Modules of XLA after its partitioner beside the steps of which they are made."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import verify_scale
from mspc.ir.diagnostics import ExecutionError, MspcError
from tests.stablehlo_texts import STEP, module
from tests.texts import text_of

MODULES = Path(__file__).with_name("partitioned_modules.mlir")
AFTER = text_of(MODULES, "step")
"""The module of `STEP` for four devices."""
WHOLE = module(["%x: tensor<8x8xf32>"], "", [("%x", "tensor<8x8xf32>")])


def check(folder: Path, step: str, after: str, name: str = "after.mlir") -> None:
    """Compare a module with a step. Raise MspcError if they differ, or one cannot be read."""
    (folder / "step.mlir").write_text(step)
    (folder / name).write_text(after)
    verify_scale(str(folder / "step.mlir"), CompileOptions(loudness=Loudness(False, True)), 0, folder / name)


def test_the_module_computes_the_step(tmp_path: Path) -> None:
    check(tmp_path, STEP, AFTER)


@pytest.mark.parametrize(("old", "new"), [
    ("dense<[[0, 1], [2, 3]]>", "dense<[[0, 3], [1, 2]]>"), ("stablehlo.maximum", "stablehlo.minimum"),
    ("dense<1.000000e-01>", "dense<2.000000e-01>"), ("stablehlo.subtract %arg0, %5", "stablehlo.subtract %5, %arg0"),
    ("stablehlo.add %arg3, %arg4", "stablehlo.maximum %arg3, %arg4"),
    ("stablehlo.dot_general %2, %8", "stablehlo.dot_general %2, %7"),
    ("stablehlo.subtract %arg1, %10", "stablehlo.subtract %arg1, %9"),
    ("handle = 2, type = 0>, replica_groups = dense<[[0, 2], [1, 3]]>",
     "handle = 2, type = 0>, replica_groups = dense<[[0, 1], [2, 3]]>"),
])  # fmt: skip
def test_single_changes_are_found(tmp_path: Path, old: str, new: str) -> None:
    assert old in AFTER
    with pytest.raises(ExecutionError, match=r"differ|cannot be computed"):
        check(tmp_path, STEP, AFTER.replace(old, new, 1))


def test_a_wrong_sum_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError) as found:
        check(tmp_path, STEP, AFTER.replace("dense<[[0, 1], [2, 3]]>", "dense<[[0, 2], [1, 3]]>"))
    assert "step.py:7:11" in str(found.value)


@pytest.mark.parametrize("name", ["gather", "ring", "line", "slices", "scatter", "other_order_in_memory", "loop"])
def test_collectives(tmp_path: Path, name: str) -> None:
    """Modules of four devices with two rows of x each, which give x back, whole or in slices."""
    check(tmp_path, WHOLE, text_of(MODULES, name))


def test_groups_have_an_order(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError, match="differ"):
        check(tmp_path, WHOLE, text_of(MODULES, "gather").replace("[[0, 1, 2, 3]]", "[[0, 2, 1, 3]]"))


def test_a_start_beyond_the_end_is_tried(tmp_path: Path) -> None:
    """A slice that each device takes from the middle of the slice of all: for starts beyond the end it is another."""
    types = "(tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x6xf32>"
    body = f"""    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %x, %c, %s, sizes = [2, 6] : {types}"""
    step = module(["%x: tensor<2x8xf32>", "%s: tensor<i32>"], body, [("%0", "tensor<2x6xf32>")])
    check(tmp_path, step, text_of(MODULES, "slices_in_two"))
    with pytest.raises(ExecutionError, match="differ"):
        check(tmp_path, step, text_of(MODULES, "start_beyond"))


@pytest.mark.parametrize(("old", "new", "message"), [
    ("num_partitions = 4", "num_partitions = 8", "is for 8 devices, and .* for 4"),
    ("num_partitions = 4", "num_replicas = 2 : i32, mhlo.num_partitions = 4", "is for 8 devices"),
    ("mhlo.fusion", "mhlo.rise", "not known: mhlo.rise"), ("[2, 3]]>", "[2, 9]]>", "is in no group"),
    ("devices=[2,1,2]<=[4]", "devices=[1,1,4]<=[4]", "argument x is .*no slice of"),
])  # fmt: skip
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in AFTER
    with pytest.raises(MspcError, match=message):
        check(tmp_path, STEP, AFTER.replace(old, new))


def test_a_module_of_another_step(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"has 1 arguments, and .* has 3"):
        check(tmp_path, STEP, text_of(MODULES, "gather"))


@pytest.mark.skipif(
    "MSPC_JAX_PYTHON" in os.environ or importlib.util.find_spec("jax") is not None, reason="JAX is installed"
)
def test_hlo_is_converted_by_jax(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match=r"cannot read .*after.hlo: .*No module named 'jax'"):
        check(tmp_path, WHOLE, "HloModule rows, num_partitions=4", "after.hlo")


@pytest.mark.thorough
def test_random_steps_of_jax(tmp_path: Path) -> None:
    """Modules that XLA makes of random steps compute them."""
    pytest.importorskip("jax", reason="JAX is not installed")
    command = [sys.executable, "-m", "tests.readers.stablehlo_random_steps"]
    subprocess.run([*command, "write", str(tmp_path), "--count", "4"], check=True, capture_output=True)
    subprocess.run([*command, "judge", str(tmp_path), "--only", "2", "3"], check=True)
