"""`mspc ckpt`: what it prints, its JSON, its exit status."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn
from mspc.ir.diagnostics import MspcError
from mspc.plans.files.strategy_file import ParameterCut, StrategyFile, write_strategies
from tests.checkpoint.written_sets import WHOLE, changed, flip, write_set
from tests.serving import invoke


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ckpt(*arguments: str, status: int = 0) -> str:
    done = invoke("ckpt", *arguments)
    assert done.exit_code == status, done.output
    return done.output


def read(*arguments: str, status: int = 0) -> Any:
    return json.loads(ckpt(*arguments, "--json", "-", status=status))


def test_showing() -> None:
    place = write_set(Path("sets"), 1)
    assert ckpt("show", str(place)).splitlines() == [
        "1 tensors, 256 B",
        "tensor  type     shape   layout      slices  bytes",
        "w       Float32  (8, 8)  (2) [0, -]  2       256 B",
        "total_step: 1",
    ]
    found = read("show", str(place))
    assert (found["ranks"], found["state"], found["bytes"]) == (2, {"total_step": 1}, 256)
    assert found["tensors"][0]["layout"] == "(2) [0, -]"


def test_comparing() -> None:
    first, second = write_set(Path("one"), 1), write_set(Path("two"), 1, ranks=4)
    assert ckpt("diff", str(first), str(second)) == "equal: 1 tensors, bit for bit\n"
    third = write_set(Path("three"), 2)
    assert "w       64 of 64 elements, by 1 at most" in ckpt("diff", str(first), str(third), status=1)
    ms.save_checkpoint({"w": Tensor(WHOLE[:4]), "v": Tensor(1)}, "other.ckpt")
    found = read("diff", str(first), "other.ckpt", status=1)
    assert [row["name"] for row in found["differences"]] == ["v", "w"]
    assert found["differences"][0]["difference"] == "only in other.ckpt"
    assert "(8, 8)> and <Tensor[Float32], (4, 8)>" in found["differences"][1]["difference"]


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_merging_and_transforming(suffix: str) -> None:
    place = write_set(Path("sets"), 1)
    assert ckpt("merge", str(place), f"whole.{suffix}") == f"whole.{suffix}: 1 tensors, 256 B\n"
    assert np.array_equal(ms.load_checkpoint(f"whole.{suffix}")["w"].asnumpy(), WHOLE + 1)
    write_strategies(Path("s.ckpt"), StrategyFile({}, {"w": ParameterCut((2, 2), ((1,), (0,)))}))
    found = read("transform", str(place), "out", "--to", "s.ckpt", "--format", suffix)
    assert found["files"] == [f"out/rank_{rank}/CKP{rank}.{suffix}" for rank in range(4)]
    assert np.array_equal(ms.load_checkpoint(found["files"][1])["w"].asnumpy(), (WHOLE + 1)[:4, 4:])
    strategy = ["--strategy", "s.ckpt"] if suffix == "ckpt" else []
    assert ckpt("diff", "out", str(place), *strategy) == "equal: 1 tensors, bit for bit\n"
    rest = ", 1 of them without a checksum that can be compared here" if suffix == "ckpt" else ""
    assert ckpt("check", "out", *strategy) == f"complete: 1 tensors, 256 B{rest}\n"


def test_checking() -> None:
    place = write_set(Path("sets"), 1)
    assert ckpt("check", str(place)) == "complete: 1 tensors, 256 B\n"
    changed(place / "rank_1-1.safetensors", flip)
    assert ckpt("check", str(place), status=1).startswith("damaged: w: sets/CKP-1_1/rank_1-1.safetensors is damaged: ")
    assert read("check", str(place), status=1)["whole"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "x"), "error: there is no checkpoint 'x'"),
        (("merge", "x", "y.txt"), "error: y.txt ends in neither .safetensors nor .ckpt, so its format is not known"),
        (("merge", "x", "no/y.ckpt"), "error: cannot write no/y.ckpt: there is no folder 'no'"),
        (("transform", "x", "y", "--to", "z"), "error: there is no strategy file 'z'"),
        (("show", "a.ckpt", "--strategy", "s.json"), "--strategy goes with a folder of files of all ranks"),
        (("show", ".", "--json", "no/x"), "error: cannot write no/x: there is no folder 'no'"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    ms.save_checkpoint({"w": Tensor(1)}, "a.ckpt")
    write_strategies(Path("s.json"), StrategyFile())
    done = invoke("ckpt", *arguments, status=2)
    assert message in done.output


def write_ranks(unlike: bool) -> None:
    """Files of MindSpore's format that say nothing of their places."""
    for rank in range(2):
        Path(f"rank_{rank}").mkdir()
        part = WHOLE[4 * rank * unlike : 4 * rank * unlike + 4]
        ms.save_checkpoint({"w": Tensor(part), "b": Tensor(WHOLE[0])}, f"rank_{rank}/net.ckpt", format="ckpt")


@pytest.mark.parametrize("verb", [("merge", ".", "all.ckpt"), ("transform", ".", "out"), ("diff", ".", ".")])
def test_slices_that_nothing_puts_together_are_refused(verb: tuple[str, ...]) -> None:
    write_ranks(True)
    said = ckpt(*verb, status=2).replace("\n", " ")
    assert "rank_0/net.ckpt and rank_1/net.ckpt have other values in 'w', so they may be slices" in said
    assert "strategy_ckpt_save_file and AutoParallel.save_param_strategy_file write the strategy file" in said
    assert not Path("all.ckpt").exists()
    assert not Path("out").exists()
    ckpt("show", ".")
    ckpt("check", ".")
    ckpt("merge", "rank_1/net.ckpt", "one.ckpt")


def test_files_of_ranks_that_hold_the_same_are_merged() -> None:
    write_ranks(False)
    ckpt("merge", ".", "all.ckpt")
    np.testing.assert_array_equal(ms.load_checkpoint("all.ckpt")["w"].asnumpy(), WHOLE[:4])


def test_slices_are_merged_by_their_strategy_file() -> None:
    write_ranks(True)
    write_strategies(Path("strategy.ckpt"), StrategyFile({}, {"w": ParameterCut((2,), ((0,), ()))}))
    ckpt("merge", ".", "all.ckpt", "--strategy", "strategy.ckpt")
    np.testing.assert_array_equal(ms.load_checkpoint("all.ckpt")["w"].asnumpy(), WHOLE)


def test_slices_that_are_loaded_alone_are_named_so() -> None:
    write_ranks(True)
    net = nn.Cell()
    net.w = Parameter(Tensor(np.zeros_like(WHOLE)), name="w")
    with pytest.raises(ValueError, match="these may be slices of one rank: parameter 'w' has shape") as caught:
        ms.load_checkpoint("rank_1/net.ckpt", net)
    assert "load_distributed_checkpoint(net, files in the ranks' order" in str(caught.value)
    with pytest.raises(MspcError, match=r"its folders rank_0, rank_1, \.\.\. have a file of each rank"):
        ms.load_checkpoint(".", net)
