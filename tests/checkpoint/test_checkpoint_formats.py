"""Every format comes back as it was written: files, MindSpore's format, sharded safetensors, strategy files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mspc as ms
from mspc import Parameter, Tensor, nn
from mspc.checkpoint import mindspore_file
from mspc.checkpoint.mindspore_file import Entry
from mspc.ir.files import tensors as wire
from mspc.mindspore_api.common.api import _cell_graph_executor
from mspc.parallel import (
    build_searched_strategy,
    load_distributed_checkpoint,
    merge_sliced_parameter,
    rank_list_for_transform,
    restore_group_info_list,
    transform_checkpoint_by_rank,
    transform_checkpoints,
)
from mspc.plans.files.strategy_file import (
    ParameterCut,
    StrategyFile,
    layout_of,
    read_strategies,
    sharding_of,
    write_strategies,
)
from tests.errors import error_of
from tests.graphs import DTYPES, FLOAT32, Layout, MspcError, TensorType

RANKS = 4
WHOLE = {"w": np.arange(96, dtype=np.float32).reshape(8, 12), "v": np.arange(12, dtype=np.float32)}
CUTS = {"w": ParameterCut((2, 2), ((1,), (0,))), "v": ParameterCut((4,), ((),), 1, 4)}
OTHERS = {"w": ParameterCut((2,), ((), (0,))), "v": ParameterCut((2,), ((0,),))}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3), (0,)])
@pytest.mark.parametrize("crc", [False, True])
def test_every_element_type_comes_back_from_mindspores_format(
    name: str, shape: tuple[int, ...], crc: bool, tmp_path: Path
) -> None:
    values = np.arange(int(np.prod(shape))).reshape(shape).astype(DTYPES[name].numpy)
    path = str(tmp_path / "x.ckpt")
    ms.save_checkpoint({"x": Tensor(values)}, path, crc_check=crc, append_dict={"text": "§", "n": 1.5})
    assert Path(path).read_bytes()[0] == 10, "the first byte of a message, not that of a header's length"
    found = ms.load_checkpoint(path, crc_check=crc)
    assert found["x"].asnumpy().tobytes() == values.tobytes()
    assert (found["x"].shape, found["x"].dtype) == (shape, DTYPES[name])
    assert (found["text"], found["n"].item()) == ("§", 1.5)


def test_large_tensors_stand_in_several_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mindspore_file, "MAX_IN_A_VALUE", 30)
    ms.save_checkpoint({"w": Tensor(WHOLE["w"]), "v": Tensor(WHOLE["v"])}, str(tmp_path / "x.ckpt"))
    data = (tmp_path / "x.ckpt").read_bytes()
    assert len(list(wire.fields(data, 0, len(data)))) == -(-384 // 28) + -(-48 // 28)
    found = ms.load_checkpoint(str(tmp_path / "x.ckpt"))
    assert np.array_equal(found["w"].asnumpy(), WHOLE["w"])
    assert np.array_equal(found["w"].fill_slices((slice(2, 5), slice(3, 12))), WHOLE["w"][2:5, 3:])


def test_a_file_by_its_older_name_is_found(tmp_path: Path) -> None:
    """Safetensors under a name of the other format, and a name that has become safetensors or a set."""
    ms.save_checkpoint({"w": Tensor([1.0])}, str(tmp_path / "a.safetensors"))
    (tmp_path / "b.ckpt").write_bytes((tmp_path / "a.safetensors").read_bytes())
    for name in ("a", "a.ckpt", "b.ckpt"):
        assert ms.load_checkpoint(str(tmp_path / name))["w"].asnumpy().tolist() == [1]


def test_sharded_safetensors_with_other_names(tmp_path: Path) -> None:
    save_file({"model.w": WHOLE["w"]}, tmp_path / "model-1.safetensors")
    save_file({"model.v": WHOLE["v"]}, tmp_path / "model-2.safetensors")
    index = {"weight_map": {"model.w": "model-1.safetensors", "model.v": "model-2.safetensors"}}
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    for name in (tmp_path, path):
        found = ms.load_checkpoint(str(name), name_map={"model.w": "w"})
        assert np.array_equal(found["w"].asnumpy(), WHOLE["w"])
        assert sorted(found) == ["model.v", "w"]
    for wrong, message in (
        ({"weight_map": {"model.x": "model-1.safetensors"}}, "holds tensor 'model.x', and it does not"),
        ({"weight_map": {"model.w": "../model-1.safetensors"}}, "a path out of its folder"),
        ({"weight_map": {"model.w": "model-3.safetensors"}}, "there is no file of a checkpoint"),
        ({"weight_map": []}, "its weight_map names no files"),
        ([], "is no index of a checkpoint"),
    ):
        path.write_text(json.dumps(wrong))
        assert message in error_of(ms.load_checkpoint, str(path)).message


def test_a_file_of_ours_is_one_of_the_librarys(tmp_path: Path) -> None:
    ms.save_checkpoint({"w": Tensor(WHOLE["w"])}, str(tmp_path / "a"))
    assert np.array_equal(load_file(tmp_path / "a.safetensors")["w"], WHOLE["w"])


def test_the_same_is_written_for_the_same(tmp_path: Path) -> None:
    for name in ("a", "b", "a.ckpt", "b.ckpt"):
        ms.save_checkpoint({"w": Tensor(WHOLE["w"])}, str(tmp_path / name), append_dict={"text": "x"})
    for suffix in ("safetensors", "ckpt"):
        assert len({(tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab"}) == 1


def sliced(folder: Path, format: str) -> None:
    """One folder for every rank with its slices, and the strategy files `one.ckpt` and `two.ckpt`."""
    for rank in range(RANKS):
        own = {n: Tensor(WHOLE[n][layout_of(n, c).slices_for(rank, WHOLE[n].shape)]) for n, c in CUTS.items()}
        path = folder / "src" / f"rank_{rank}" / f"a.{format}"
        if format == "ckpt":
            ms.save_checkpoint(own, str(path))
        else:
            path.parent.mkdir(parents=True)
            save_file({name: value.asnumpy() for name, value in own.items()}, path)
    for name, cuts in (("one", CUTS), ("two", OTHERS)):
        operators = {"MatMul_w": ((2, 1), (1, 2))}
        write_strategies(folder / f"{name}.ckpt", StrategyFile(operators, cuts))
        write_strategies(folder / f"{name}.json", StrategyFile(operators, cuts))


def test_groups_of_ranks_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = ms.Parameter(ms.Tensor(np.ones((16, 16), np.float32)), "w")
            self.matmul = ms.ops.MatMul().shard(((2, 1), (1, 2)))

        def construct(self, x: ms.Tensor) -> ms.Tensor:
            return self.matmul(x, self.w)

    def alike(path: Path, **settings: object) -> list[int]:
        ms.reset_auto_parallel_context()
        ms.set_auto_parallel_context(device_num=8, **settings)
        net = Net()
        step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
        _cell_graph_executor.compile(step, ms.Tensor(np.ones((16, 16), np.float32)))
        return restore_group_info_list(str(path))

    sharded = {"parallel_mode": "semi_auto_parallel", "dataset_strategy": "full_batch"}
    assert alike(tmp_path / "a", **sharded, group_ckpt_save_file=str(tmp_path / "a")) == [0, 1, 4, 5]
    monkeypatch.setenv("GROUP_INFO_FILE", str(tmp_path / "b"))
    assert alike(tmp_path / "b", parallel_mode="data_parallel") == [0, 1, 2, 3, 4, 5, 6, 7]
    optimizer = {"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": 2}
    found = alike(tmp_path / "b", **sharded, enable_parallel_optimizer=True, parallel_optimizer_config=optimizer)
    assert len(found) == 2
    assert found[0] == 0


@pytest.mark.parametrize("suffix", ["ckpt", "json"])
@pytest.mark.parametrize("format", ["ckpt", "safetensors"])
def test_transforming(format: str, suffix: str, own_folder: Path) -> None:
    sliced(own_folder, format)
    one, two = f"one.{suffix}", f"two.{suffix}"
    transform_checkpoints("src", "two", "t", one, two, process_num=2, output_format=format)
    transform_checkpoints("src", "whole", "t", one)
    transform_checkpoints("two", "back", "t", two, one)
    assert all(np.array_equal(ms.load_checkpoint("whole/rank_0/t0.ckpt")[n].asnumpy(), a) for n, a in WHOLE.items())
    for rank in range(2):
        ranks = rank_list_for_transform(rank, one, two)
        assert ranks == sorted(ranks, reverse=True)
        files = {r: f"src/rank_{r}/a.{format}" for r in ranks}
        transform_checkpoint_by_rank(rank, files, f"by_rank/{rank}.ckpt", one, two)
        for path in (f"two/rank_{rank}/t{rank}.{format}", f"by_rank/{rank}.ckpt"):
            found = ms.load_checkpoint(path)
            for name, cut in OTHERS.items():
                slices = layout_of(name, cut).slices_for(rank, WHOLE[name].shape)
                assert np.array_equal(found[name].asnumpy(), WHOLE[name][slices])
    for rank in range(RANKS):
        first, second = (
            ms.load_checkpoint(f"{d}") for d in (f"src/rank_{rank}/a.{format}", f"back/rank_{rank}/t{rank}.ckpt")
        )
        assert all(np.array_equal(first[name].asnumpy(), second[name].asnumpy()) for name in WHOLE)


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.zeros((8, 12), np.float32)), "w")
        self.v = Parameter(Tensor(np.zeros(12, np.float32)), "v")


def test_loading_slices_of_all_ranks(own_folder: Path) -> None:
    sliced(own_folder, "ckpt")
    files = [f"src/rank_{rank}/a.ckpt" for rank in range(RANKS)]
    net = Net()
    assert load_distributed_checkpoint(net, files, None, "one.ckpt") is True
    assert all(np.array_equal(p.asnumpy(), WHOLE[p.name]) for p in net.get_parameters())
    with pytest.raises(ValueError, match="load_distributed_checkpoint loads into a network, and writes no files"):
        load_distributed_checkpoint(None, files, "two.ckpt", "one.ckpt", dst_safetensors_dir="out")
    strategy = build_searched_strategy("one.ckpt")
    assert (strategy["w"].dev_matrix[0].dim, strategy["w"].tensor_map[0].dim) == ([2, 2], [1, 0])
    parts = [Parameter(ms.load_checkpoint(file)["w"], "w") for file in files]
    assert np.array_equal(merge_sliced_parameter(parts, strategy).asnumpy(), WHOLE["w"])
    assert merge_sliced_parameter(parts[:2]).shape == (8, 6)
    with pytest.raises(KeyError, match="the strategy has no parameter 'w'"):
        merge_sliced_parameter(parts, {})
    with pytest.raises(ValueError, match="the strategy has 4 ranks, there are 3 slices"):
        merge_sliced_parameter(parts[:3], strategy)
    with pytest.raises(ValueError, match="there are 3 files"):
        load_distributed_checkpoint(net, files[:3], None, "one.ckpt")


def test_a_checkpoint_of_another_float_is_converted(tmp_path: Path) -> None:
    ms.save_checkpoint({"w": Tensor(WHOLE["w"].astype(np.float16))}, str(tmp_path / "x.ckpt"))
    net = Net()
    load_distributed_checkpoint(net, [str(tmp_path / "x.ckpt")])
    np.testing.assert_array_equal(net.w.asnumpy(), WHOLE["w"])
    assert net.w.dtype == FLOAT32


def test_groups_of_ranks_are_read(tmp_path: Path) -> None:
    ranks = b"".join(wire.put_integer(1, n) for n in (0, 3, 200))
    item = wire.put_text(1, "g") + wire.put_bytes(2, ranks)
    (tmp_path / "g.pb").write_bytes(wire.put_bytes(1, item) + wire.put_bytes(2, ranks))
    assert restore_group_info_list(str(tmp_path / "g.pb")) == [0, 3, 200]
    with pytest.raises(ValueError, match="there is no file of groups"):
        restore_group_info_list(str(tmp_path / "h.pb"))


@pytest.mark.parametrize("suffix", ["ckpt", "json"])
def test_strategy_files_come_back(suffix: str, tmp_path: Path) -> None:
    cuts = {
        "several": ParameterCut((2, 3, 4), ((2, 0), (1,))), "one": ParameterCut((2, 4), ((1, 0),)),
        "scalar": ParameterCut((8,), ()), "step": ParameterCut((2, 4), ((1,), ()), 1, 4),
        "unequal": ParameterCut((2,), ((0,),), 0, 0, (3, 5), (0, 3), 2),
    }  # fmt: skip
    given = StrategyFile({"MatMul_w": ((2, 4), (4, 1)), "Add_b": ((), (3,))}, cuts, 1)
    write_strategies(tmp_path / f"s.{suffix}", given)
    assert read_strategies(tmp_path / f"s.{suffix}") == given
    layout = Layout.of((2, 3, 4), [(0, 2), (1,)])
    assert layout_of("x", sharding_of(layout)) == layout


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    type = TensorType(FLOAT32, ())
    with pytest.raises(MspcError, match="its name is no text"), open(tmp_path / "x", "wb") as file:
        mindspore_file.write_file(file, [Entry("\ud800", type, lambda: np.zeros((), np.float32))])


def test_files_of_all_ranks_get_their_names_together(own_folder: Path) -> None:
    sliced(own_folder, "ckpt")
    transform_checkpoints("src", "out", "t", "one.ckpt", "two.ckpt")
    before = {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}

    def until_the_second(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    for out in ("out", "new"):
        with pytest.raises(KeyboardInterrupt):
            transform_checkpoints("src", out, "t", "one.ckpt", "one.ckpt", on_rank=until_the_second)
    assert {path: path.read_bytes() for path in Path("out").rglob("*") if path.is_file()} == before
    assert not Path("new").exists()
    transform_checkpoints("src", "out", "t", "one.ckpt", "one.ckpt")
    assert sorted(path.name for path in Path("out").iterdir()) == [f"rank_{rank}" for rank in range(RANKS)]


def test_saving_in_the_background(tmp_path: Path) -> None:
    """The values are those of the call, whatever happens afterwards; a failure is raised by what comes next."""
    array = Tensor(WHOLE["w"])
    for style in (True, "thread", "process"):
        ms.save_checkpoint({"w": array}, str(tmp_path / f"{style}.ckpt"), async_save=style)
    net: Any = {"w": array}
    (tmp_path / "file").write_text("")
    ms.save_checkpoint(net, str(tmp_path / "file" / "x.ckpt"), async_save=True)
    with pytest.raises(MspcError, match="cannot write to"):
        ms.save_checkpoint(net, str(tmp_path / "y.ckpt"), async_save=True)
    ms.save_checkpoint(net, str(tmp_path / "y.ckpt"), async_save=True)
    while ms.async_ckpt_thread_status():
        pass
    for style in (True, "thread", "process", "y"):
        assert np.array_equal(ms.load_checkpoint(str(tmp_path / f"{style}.ckpt"))["w"].asnumpy(), WHOLE["w"])
    with pytest.raises(ValueError, match=r"ends in \.ckpt, and format is 'safetensors'"):
        ms.save_checkpoint(net, "x.ckpt", format="safetensors")
    with pytest.raises(TypeError, match="save_checkpoint has no argument 'later'"):
        ms.save_checkpoint(net, "x.ckpt", later=True)
    with pytest.raises(ValueError, match="async_save 3 is not True, False, 'thread' or 'process'"):
        ms.save_checkpoint(net, "x", async_save=3)
