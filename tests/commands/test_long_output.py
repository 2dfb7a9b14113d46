"""Long output is summed up: on one screen however many layers a network has, with every row under --all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mspc.cli import app
from mspc.commands.report.tables import size_text
from mspc.commands.report.verification import print_values
from mspc.verify.difference import ComparedValue

SCREEN = 50
"""Lines."""
LAYERS = """
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up = Parameter(Tensor(shape=(16, 32), dtype=ms.float32, init="normal"))
        self.down = Parameter(Tensor(shape=(32, 16), dtype=ms.float32, init="normal"))
        self.first = ops.MatMul().shard(((2, 1), (1, 4)))
        self.relu = ops.ReLU().shard(((2, 4),))
        self.second = ops.MatMul().shard(((2, 4), (4, 1)))
        self.add = ops.Add().shard(((2, 1), (2, 1)))
    def construct(self, x):
        return self.add(self.second(self.relu(self.first(x, self.up)), self.down), x)
class Net(nn.Cell):
    def __init__(self, layers):
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(layers)])
    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return x
"""


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def script(own_folder: Path) -> Path:
    path = own_folder / "net.py"
    path.write_text(LAYERS)
    return path


def network(script: Path, layers: int) -> list[str]:
    return [f"{script}:Net({layers})", "--input", "float32[8,16]", "--ranks", "8"]


def test_a_compile_fits_a_screen_whatever_the_layers(script: Path) -> None:
    texts = {}
    for layers in (6, 12):
        done = run("compile", *network(script, layers), "--json", "table.json")
        assert done.exit_code == 0, done.output
        texts[layers] = done.stdout.splitlines()
        report = json.loads(Path("table.json").read_text())
        assert len(report["operators"]) == 4 * layers
        (row,) = [line.split() for line in texts[layers] if line.startswith("*-Block ")]
        assert row[1:4] == [str(layers), str(4 * layers), str(layers + 1)]
        (dearest,) = [line.split() for line in texts[layers] if line.startswith("AllReduce ")]
        assert dearest[2:5] == [str(layers), *size_text(384 * layers).split()]
    assert len(texts[6]) == len(texts[12]) <= SCREEN


def test_all_has_every_row_of_a_compile(script: Path) -> None:
    done = run("compile", *network(script, 12), "--all", "--json", "table.json")
    assert done.exit_code == 0, done.output
    report = json.loads(Path("table.json").read_text())
    lines = done.stdout.splitlines()
    assert sum(line.startswith("MatMul ") for line in lines) == 24
    assert all(any(line.startswith(f"{row['name']} ") for line in lines) for row in report["parameters"])
    assert sum(line.startswith(("AllReduce ", "AllGather ")) for line in lines) == len(report["collectives"]) == 13


def test_what_fits_a_screen_has_every_row(script: Path) -> None:
    done = run("compile", *network(script, 2))
    assert done.stdout == run("compile", *network(script, 2), "--all").stdout
    assert len(done.stdout.splitlines()) <= SCREEN


def values(layers: int) -> list[ComparedValue]:
    return [
        ComparedValue(kind, f"layers.{layer}.{name}", (4, 4), 1e-7 * (layer + 1), 1e-5)
        for kind in ("gradient", "parameter")
        for name in ("attention.wq", "norm.gamma", "up.weight", "down.weight")
        for layer in range(layers)
    ]


def test_values_of_verify_by_kind_the_worst_named(capsys: pytest.CaptureFixture[str]) -> None:
    for layers in (6, 60):
        rows = values(layers)
        print_values(rows, "title", all_rows=False)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 10
        assert lines[2].split() == [
            "gradient", "layers.*.attention.wq", str(layers), f"{1e-7 * layers:.1e}", "1e-05", "worst:",
            f"layers.{layers - 1}.attention.wq",
        ]  # fmt: skip
        print_values(rows, "title", all_rows=True)
        assert len(capsys.readouterr().out.splitlines()) == len(rows) + 2


def test_a_value_that_differs_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    excused = ComparedValue("parameter", "head", (), 0.5, 1e-5, excused=True)
    rows = [*values(9), ComparedValue("output", "0", (), 3e-3, 1e-5), excused]
    print_values(rows, "title", all_rows=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["output", "0", "1", "3.0e-03", "1e-05", "1", "differs"]
    assert lines[-1].split() == ["parameter", "head", "1", "5.0e-01", "1e-05", "1", "by", "rounding"]


@pytest.fixture
def two(script: Path) -> Callable[[int], tuple[str, str]]:
    """Compiles of so many layers for 8 and for 16 ranks: their folders."""

    def folders(layers: int) -> tuple[str, str]:
        for ranks in ("8", "16"):
            done = run("compile", *network(script, layers)[:-1], ranks, "--out", f"{layers}_{ranks}", "-q")
            assert done.exit_code == 0, done.output
        return f"{layers}_8", f"{layers}_16"

    return folders


def test_diff_and_check_say_what_was_left_out(two: Callable[[int], tuple[str, str]]) -> None:
    first, second = two(6)
    for arguments in (("check", first, "--max-bytes", "1"), ("diff", first, second)):
        short, full = run(*arguments), run(*arguments, "--all")
        assert short.exit_code == full.exit_code == 1, full.output
        assert "--all shows" in short.stdout
        assert "--all" not in full.stdout
        assert len(short.stdout.splitlines()) < len(full.stdout.splitlines())
        assert short.stdout.splitlines()[-1] == full.stdout.splitlines()[-1]
    assert run("diff", first, second, "-q").stdout == f"{first} and {second} differ\n"


def test_limits_that_the_same_collectives_break_list_them_once(script: Path) -> None:
    assert run("compile", *network(script, 12), "--out", "graphs", "-q").exit_code == 0
    done = run("check", "graphs", "--max-bytes", "1", "--max-collectives", "1", "--max-step", "1us")
    assert done.exit_code == 1, done.output
    assert len(done.stdout.splitlines()) <= SCREEN
    assert done.stdout.count("; by the collectives of ") == 2
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("AllReduce ")]
    assert row[2:5] == ["12", *size_text(12 * 384).split()]
