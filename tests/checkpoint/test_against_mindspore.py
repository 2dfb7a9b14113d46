"""Files of MindSpore's formats beside MindSpore itself, where it is installed: `MSPC_MINDSPORE` names its Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor
from mspc.ir.types import DTYPES
from mspc.parallel import (
    build_searched_strategy,
    merge_pipeline_strategys,
    merge_sliced_parameter,
    transform_checkpoints,
)
from mspc.plans.files.strategy_file import ParameterCut, StrategyFile, layout_of, read_strategies, write_strategies
from tests.conftest import HANG

PYTHON = os.environ.get("MSPC_MINDSPORE", "")
pytestmark = pytest.mark.skipif(
    not PYTHON or shutil.which(PYTHON) is None, reason="MSPC_MINDSPORE names no Python that has MindSpore"
)
SAME = [name for name in DTYPES if name != "BFloat16"]
LOADED = [name for name in SAME if not name.startswith("Complex")]
"""Element types that MindSpore reads: it writes complex ones to .ckpt files, and does not read them back."""
RANKS = 8
CUTS = {
    "plain": ParameterCut((2, 4), ((1,), (0,))),
    "replicas": ParameterCut((2, 4), ((0,), ())),
    "optimizer": ParameterCut((2, 4), ((), (1,)), 1, 4),
    "optimizer.part": ParameterCut((2, 4), ((1,), ()), 1, 2),
    "optimizer.all": ParameterCut((2, 2, 2), ((1,), ()), 1, 4),
    "several": ParameterCut((2, 2, 2), ((2, 0), (1,))),
    "whole": ParameterCut((8,), ((), ())),
}
"""Strategies of a parameter of shape [16, 8] on 8 ranks."""


def mindspore(script: str, folder: Path) -> str:
    """The output of MindSpore when it runs a script in a folder."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    head = "import numpy as np\nimport mindspore as ms\nfrom mindspore import Tensor, Parameter\n"
    done = subprocess.run(
        [PYTHON, "-c", head + script], cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def whole(name: str) -> np.ndarray:
    return np.arange(128, dtype=np.float32).reshape(16, 8) + 1000 * list(CUTS).index(name)


def test_checkpoints_of_mindspore_are_read(tmp_path: Path) -> None:
    mindspore(
        f"names = {SAME!r}\n"
        "values = [{'name': n, 'data': Tensor(np.arange(6).reshape(2, 3), getattr(ms, 'bool_' if n == 'Bool' else "
        "n.lower()))} for n in names]\n"
        "values += [{'name': 'scalar', 'data': Tensor(2.5, ms.float32)}, {'name': 'half', 'data': Tensor([1.5, 3], "
        "ms.bfloat16)}]\n"
        "ms.save_checkpoint(values, 'a.ckpt', append_dict={'epoch_num': 3, 'text': 'häß'}, crc_check=True)\n"
        "ms.save_checkpoint(values[:3], 'b.safetensors', format='safetensors')\n",
        tmp_path,
    )
    found = ms.load_checkpoint(str(tmp_path / "a.ckpt"), crc_check=True)
    for name in SAME:
        wanted = np.arange(6).reshape(2, 3).astype(DTYPES[name].numpy)
        assert found[name].asnumpy().tobytes() == wanted.tobytes(), name
        assert found[name].dtype == DTYPES[name]
    assert found["half"].asnumpy().astype(float).tolist() == [1.5, 3]
    assert (found["scalar"].shape, found["scalar"].item()) == ((), 2.5)
    assert (found["epoch_num"].item(), found["text"]) == (3, "häß")
    second = ms.load_checkpoint(str(tmp_path / "b.safetensors"))
    assert sorted(second) == sorted(SAME[:3])


@pytest.mark.parametrize("name", ["a.ckpt", "a.safetensors"])
def test_mindspore_reads_checkpoints(name: str, tmp_path: Path) -> None:
    values = {n: Tensor(np.arange(6).reshape(2, 3).astype(DTYPES[n].numpy)) for n in LOADED}
    values["scalar"] = Tensor(np.float32(2.5))
    more = {"epoch_num": 3, "text": "häß"} if name.endswith("ckpt") else {"epoch_num": 3}
    ms.save_checkpoint(values, str(tmp_path / name), append_dict=more, crc_check=True)
    crc = name.endswith("ckpt")
    said = mindspore(
        f"d = ms.load_checkpoint({name!r}, format={name.split('.')[1]!r}, crc_check={crc})\n"
        "for n in sorted(d):\n"
        "    print(n, d[n] if isinstance(d[n], str) else (str(d[n].dtype), d[n].shape, "
        "d[n].asnumpy().astype(float).tolist()))\n",
        tmp_path,
    )
    wanted = {n: (n, (2, 3), np.arange(6).reshape(2, 3).astype(DTYPES[n].numpy).astype(float).tolist()) for n in LOADED}
    wanted |= {"scalar": ("Float32", (), 2.5), "epoch_num": ("Int64", (), 3.0)}
    lines = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    assert {n: lines[n] for n in wanted} == {n: str(value) for n, value in wanted.items()}
    assert not crc or lines["text"] == "häß"


@pytest.mark.parametrize("suffix", ["ckpt", "json"])
def test_mindspore_puts_slices_together_by_our_strategy_files(suffix: str, tmp_path: Path) -> None:
    """Slices and strategy file of mspc, transformed by MindSpore to global tensors and another strategy. Its JSON has
    no words for several axes that shard one dimension."""
    known = {name: cut for name, cut in CUTS.items() if suffix == "ckpt" or name != "several"}
    others = {name: known[other] for name, other in zip(known, reversed(known), strict=True)}
    for file, cuts in (("one", known), ("two", others)):
        operators = {f"MatMul_{name}": ((1, 1), (1, 1)) for name in cuts}
        write_strategies(tmp_path / f"{file}.{suffix}", StrategyFile(operators, cuts))
    for rank in range(RANKS):
        own = {n: Tensor(whole(n)[layout_of(n, cut).slices_for(rank, (16, 8))]) for n, cut in known.items()}
        ms.save_checkpoint(own, str(tmp_path / "src" / f"rank_{rank}" / f"a{rank}.ckpt"))
    mindspore(
        f"ms.transform_checkpoints('src', 'whole', 'w', 'one.{suffix}', None)\n"
        f"ms.transform_checkpoints('src', 'other', 'o', 'one.{suffix}', 'two.{suffix}')\n",
        tmp_path,
    )
    (single,) = (tmp_path / "whole" / "rank_0").glob("*.ckpt")
    found = ms.load_checkpoint(str(single))
    for name in known:
        assert np.array_equal(found[name].asnumpy(), whole(name)), name
    for rank in range(RANKS):
        (single,) = (tmp_path / "other" / f"rank_{rank}").glob("*.ckpt")
        found = ms.load_checkpoint(str(single))
        for name, cut in others.items():
            wanted = whole(name)[layout_of(name, cut).slices_for(rank, (16, 8))]
            assert np.array_equal(found[name].asnumpy(), wanted), (name, rank)


def test_strategy_files_of_mindspore_are_read(tmp_path: Path) -> None:
    """Written by MindSpore's own messages; slices that MindSpore makes of global tensors are put together here."""
    cuts = {name: (list(c.device_matrix), [list(a) for a in c.tensor_map], c.optimizer_step, c.optimizer_size)
            for name, c in CUTS.items()}  # fmt: skip
    mindspore(
        "from mindspore.train.node_strategy_pb2 import ParallelStrategyMap\n"
        "m = ParallelStrategyMap(); m.current_stage = 0\n"
        f"for name, (matrix, axes, step, size) in {cuts!r}.items():\n"
        "    item = m.parallel_strategy_item.add(); item.node_name = 'MatMul_' + name\n"
        "    item.parallel_strategys.stage = 0; item.parallel_strategys.parallel_strategy.add().dim.extend([2, 4])\n"
        "    item = m.parallel_layout_item.add(); item.param_name = name; l = item.parallel_layouts\n"
        "    l.field = 0; l.opt_weight_shard_step = step; l.opt_weight_shard_size = size\n"
        "    l.dev_matrix.add().dim.extend(matrix)\n"
        "    rows = [a or [-1] for a in axes] if any(len(a) > 1 for a in axes) else "
        "[[a[0] if a else -1 for a in axes]]\n"
        "    for row in rows: l.tensor_map.add().dim.extend(row)\n"
        "    l.param_split_shape.add(); l.indices_offset.add()\n"
        "open('s.ckpt', 'wb').write(m.SerializeToString())\n"
        f"whole = [Parameter(Tensor(np.arange(128, dtype=np.float32).reshape(16, 8) + 1000 * i), name=n) "
        f"for i, n in enumerate({list(CUTS)!r})]\n"
        "import os; os.makedirs('in/rank_0')\n"
        "ms.save_checkpoint(whole, 'in/rank_0/a.ckpt')\n"
        "for r in range(8):\n"
        "    ms.transform_checkpoint_by_rank(r, {0: 'in/rank_0/a.ckpt'}, f'r{r}.ckpt', None, 's.ckpt')\n",
        tmp_path,
    )
    found = read_strategies(tmp_path / "s.ckpt")
    assert found.parameters == CUTS
    assert found.operators["MatMul_plain"] == ((2, 4),)
    strategy = build_searched_strategy(str(tmp_path / "s.ckpt"))
    opened = [ms.load_checkpoint(str(tmp_path / f"r{rank}.ckpt")) for rank in range(RANKS)]
    for name in CUTS:
        merged = merge_sliced_parameter([ms.Parameter(part[name], name) for part in opened], strategy)
        assert np.array_equal(merged.asnumpy(), whole(name)), name
    for rank in range(RANKS):
        os.renames(tmp_path / f"r{rank}.ckpt", tmp_path / "src" / f"rank_{rank}" / "a.ckpt")
    transform_checkpoints(str(tmp_path / "src"), str(tmp_path / "dst"), "w", str(tmp_path / "s.ckpt"))
    again = ms.load_checkpoint(str(tmp_path / "dst" / "rank_0" / "w0.ckpt"))
    assert all(np.array_equal(again[name].asnumpy(), whole(name)) for name in CUTS)


@pytest.mark.parametrize("suffix", ["ckpt", "json"])
def test_stages_are_merged_alike(suffix: str, tmp_path: Path) -> None:
    cuts = {name: cut for name, cut in CUTS.items() if name != "several" or suffix == "ckpt"}
    for stage in (0, 1):
        of_stage = {f"{name}.{stage}": cut for name, cut in cuts.items()}
        content = StrategyFile({f"MatMul_{stage}": ((2, 4), (4, 1))}, of_stage, stage)
        write_strategies(tmp_path / "stages" / f"s{stage}.{suffix}", content)
    merge_pipeline_strategys(str(tmp_path / "stages"), str(tmp_path / f"own.{suffix}"))
    mindspore(f"ms.merge_pipeline_strategys('stages', 'theirs.{suffix}')", tmp_path)
    assert read_strategies(tmp_path / f"own.{suffix}") == read_strategies(tmp_path / f"theirs.{suffix}")
