"""Strategy files of the stages of a pipeline, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, merge_pipeline_strategys, parallel
from mspc.checkpoint.sliced import layouts_in
from mspc.ir.diagnostics import MspcError
from mspc.parallel import transform_checkpoints
from mspc.plans.files.strategy_file import ParameterCut, StrategyFile, read_strategies, write_strategies

ROWS, COLUMNS = ParameterCut((2, 2), ((1,), ())), ParameterCut((2, 2), ((), (0,)))
STAGES = (
    StrategyFile({"MatMul_a": ((2, 1), (1, 1))}, {"a": ROWS, "tied": COLUMNS}),
    StrategyFile({"MatMul_b": ((1, 2), (2, 1)), "Gelu_b": ((2, 1),)}, {"b": COLUMNS, "tied": COLUMNS}, 1),
)


def written(folder: Path, suffix: str, *files: StrategyFile) -> Path:
    for number, content in enumerate(files):
        write_strategies(folder / f"stage_{number}{suffix}", content)
    return folder


@pytest.mark.parametrize("suffix", [".ckpt", ".json"])
def test_a_merged_file_names_parameters_by_their_stage(suffix: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "stages", suffix, *STAGES, STAGES[0])
    merge_pipeline_strategys(str(folder), str(tmp_path / "new" / f"all{suffix}"))
    found = read_strategies(tmp_path / "new" / f"all{suffix}")
    assert found.operators == STAGES[0].operators | STAGES[1].operators
    assert found.parameters == {"0-a": ROWS, "0-tied": COLUMNS, "1-b": COLUMNS, "1-tied": COLUMNS}
    assert {name: found.stages.get(name, found.stage) for name in found.operators} == {
        "MatMul_a": 0, "MatMul_b": 1, "Gelu_b": 1
    }  # fmt: skip
    assert list(layouts_in(tmp_path / "new" / f"all{suffix}")) == ["a", "tied", "b"]


def test_a_checkpoint_of_stages_is_transformed_by_it(tmp_path: Path) -> None:
    merge_pipeline_strategys(str(written(tmp_path / "stages", ".ckpt", *STAGES)), str(tmp_path / "all.ckpt"))
    first = np.arange(16, dtype=np.float32).reshape(4, 4)
    values = {"a": first, "b": first + 100, "tied": first + 200}
    layouts = layouts_in(tmp_path / "all.ckpt")
    for rank in range(8):
        held = ("a", "tied") if rank < 4 else ("b", "tied")
        slices = {name: values[name][layouts[name].slices_for(rank % 4, (4, 4))] for name in held}
        (tmp_path / "src" / f"rank_{rank}").mkdir(parents=True)
        entries = [{"name": name, "data": Tensor(np.ascontiguousarray(array))} for name, array in slices.items()]
        ms.save_checkpoint(entries, str(tmp_path / "src" / f"rank_{rank}" / f"c{rank}.ckpt"))
    transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "dst"), "c", str(tmp_path / "all.ckpt"))
    found = ms.load_checkpoint(str(tmp_path / "dst" / "rank_0" / "c0.ckpt"))
    assert {name: found[name].asnumpy().tolist() for name in found} == {n: v.tolist() for n, v in values.items()}


def test_what_mspc_writes_of_all_stages_may_be_merged(tmp_path: Path) -> None:
    both = StrategyFile({**STAGES[0].operators, **STAGES[1].operators}, {"a": ROWS, "b": COLUMNS})
    parallel.merge_pipeline_strategys(str(written(tmp_path / "s", ".ckpt", both, both)), str(tmp_path / "all.ckpt"))
    assert layouts_in(tmp_path / "all.ckpt") == layouts_in(tmp_path / "s" / "stage_0.ckpt")


def test_stages_that_shard_one_parameter_otherwise(tmp_path: Path) -> None:
    write_strategies(tmp_path / "all.ckpt", StrategyFile(parameters={"0-a": ROWS, "1-a": COLUMNS}))
    with pytest.raises(MspcError, match=r"shards 'a' as .* and, in stage 1, as "):
        layouts_in(tmp_path / "all.ckpt")


WRONG: list[tuple[tuple[tuple[str, StrategyFile], ...], str]] = [
    ((), "has no strategy file, .ckpt or .json"),
    (((".ckpt", STAGES[0]), (".json", STAGES[1])), "should be all '.ckpt' or all '.json'"),
    (((".ckpt", StrategyFile({}, {"a": ROWS})),), "empty.ckpt is empty"),
    (((".ckpt", STAGES[0]), (".ckpt", StrategyFile(STAGES[0].operators, {"a": COLUMNS}))), "of stage 0, and differ"),
]


@pytest.mark.parametrize(("files", "message"), WRONG)
def test_folders_that_cannot_be_merged(files: Any, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    folder.mkdir()
    for number, (suffix, content) in enumerate(files):
        write_strategies(folder / f"{number}_{'empty' if not content.operators else 'of'}{suffix}", content)
    with pytest.raises(ValueError, match=message):
        merge_pipeline_strategys(str(folder), str(tmp_path / "all.ckpt"))
    assert not (tmp_path / "all.ckpt").exists()


def test_arguments_of_a_merge(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match=r"src_strategy_dirs nowhere is not a directory\."):
        merge_pipeline_strategys("nowhere", str(tmp_path / "all.ckpt"))
    with pytest.raises(TypeError, match="src_strategy_dirs must be a string, not 3"):
        merge_pipeline_strategys(3, "all.ckpt")  # type: ignore[arg-type]
