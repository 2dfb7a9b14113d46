"""Any strategy reads any checkpoint: slices equal those of the global tensors, and no byte more is read."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mspc as ms
from mspc import Tensor, merge_pipeline_strategys, parallel
from mspc.checkpoint.files import TensorSlice, write_slices
from mspc.checkpoint.sets import INDEX, open_checkpoint, publish, rank_file
from mspc.checkpoint.sliced import layouts_in
from mspc.checkpoint.stored_tensors import box_at, box_of, covering_slices, extent, runs
from mspc.mindspore_api.train.serialization import spread
from mspc.parallel import transform_checkpoints
from mspc.plans.files.strategy_file import (
    ParameterCut,
    StrategyFile,
    layout_of,
    read_strategies,
    shard_further,
    sharding_of,
    write_strategies,
)
from mspc.sharding.pieces import Box
from tests.graphs import Layout, MspcError, TensorType, dtype_of
from tests.shares import share_of

RANKS = (1, 2, 3, 4, 6, 8)
SHAPES = {"wide": (24, 96), "long": (96, 24), "cube": (48, 4, 6), "bias": (48,), "scale": ()}
PAIRS = 50


def meshes() -> list[tuple[int, int, int]]:
    """(data, tensor, further sharded by the optimizer) for all numbers of ranks."""
    found: list[tuple[int, int, int]] = []
    for ranks in RANKS:
        for tensor in (n for n in range(1, ranks + 1) if ranks % n == 0):
            data = ranks // tensor
            found += [(data, tensor, further) for further in {1, data, 2 if data % 2 == 0 else 1}]
    return sorted(found)


def layouts(mesh: tuple[int, int, int]) -> dict[str, Layout | None]:
    """How a network that is sharded so holds its parameters and the states of its optimizer."""
    data, tensor, further = mesh
    found: dict[str, Layout | None] = {}
    for name, shape in SHAPES.items():
        for state in ("", "moment1.", "moment2."):
            if not shape:
                found[state + name] = None
                continue
            dims: list[tuple[int, ...]] = [() for _ in shape]
            dims[1 if name == "wide" else 0] = (1,)
            cut = shard_further((data, tensor), dims, further) if further > 1 else Layout.of((data, tensor), dims)
            assert cut is not None
            found[state + name] = cut if cut.divides(shape) else Layout.replicated(data * tensor, len(shape))
    return found


def values() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    dtypes = {"": np.float32, "moment1.": np.float64, "moment2.": dtype_of("BFloat16").numpy}
    found = {
        state + name: generator.standard_normal(shape).astype(dtype)
        for name, shape in SHAPES.items()
        for state, dtype in dtypes.items()
    }
    return {**found, "global_step": np.array([7], np.int32)}


def save(folder: Path, mesh: tuple[int, int, int], once: bool) -> None:
    """A set as the ranks of a mesh write it."""
    ranks, cuts, whole = mesh[0] * mesh[1], layouts(mesh), values()
    folder.mkdir()
    for rank in range(ranks):
        writes = spread(rank, ranks)
        slices = [
            _slice(name, array, cuts.get(name), rank)
            for number, (name, array) in enumerate(whole.items())
            if not once or writes(number, cuts.get(name))
        ]
        write_slices(folder / rank_file(rank, 1), slices, {})
    publish(folder, 1, ranks, {"step": 7})


def _slice(name: str, array: Any, layout: Layout | None, rank: int) -> TensorSlice:
    box = box_at(layout, rank, array.shape)
    part = array[tuple(map(slice, box.begin, box.end))]
    type = TensorType(dtype_of(array.dtype), array.shape)
    return TensorSlice(name, type, box.begin, extent(box), str(layout or ""), lambda: np.array(part))


def pairs() -> Iterator[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    """Strategies to write and to read with, drawn once and for all; each is among them."""
    known = meshes()
    generator = random.Random(1)
    for i in range(PAIRS):
        yield known[i % len(known)], generator.choice(known)


def test_pairs_of_strategies(tmp_path: Path) -> None:
    whole = values()
    seen: set[tuple[int, int]] = set()
    for number, (before, after) in enumerate(pairs()):
        folder = tmp_path / str(number)
        save(folder, before, once=number % 2 == 0)
        cuts = layouts(after)
        seen.add((before[0] * before[1], after[0] * after[1]))
        for rank in range(after[0] * after[1]):
            opened = open_checkpoint(folder)
            assert set(opened.tensors) == set(whole)
            wanted = 0
            for name, array in whole.items():
                layout = cuts.get(name)
                slices = None if layout is None else layout.slices_for(rank, array.shape)
                direct = np.array(array if slices is None else array[slices])
                assert opened.read(name, slices).tobytes() == direct.tobytes(), (before, after, rank, name)
                wanted += direct.nbytes
            assert opened.files.bytes_read == wanted, (before, after, rank)
            opened.files.close()
    assert any(a < b for a, b in seen)
    assert any(a > b for a, b in seen)


def test_a_reader_opens_no_header_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its slices it reads the index, and nothing else."""
    save(tmp_path / "set", (2, 2, 1), once=True)
    monkeypatch.setattr("mspc.checkpoint.sets.TensorFile", lambda path: pytest.fail(f"read the header of {path}"))
    opened = open_checkpoint(tmp_path / "set" / INDEX)
    opened.read("wide")
    assert opened.files.bytes_read == values()["wide"].nbytes


boxes = st.tuples(st.integers(0, 5), st.integers(1, 5))


@given(st.lists(st.tuples(boxes, boxes), min_size=1, max_size=3), st.sampled_from([1, 2, 8]))
@settings(max_examples=share_of(60), deadline=None)
def test_runs_copy_what_slicing_does(dims: list[Any], itemsize: int) -> None:
    """For any part of any stored slice and any array to fill, that contains the part."""
    part = Box(tuple(d[0][0] + d[1][0] for d in dims), tuple(d[0][0] + d[1][0] + d[0][1] for d in dims))
    stored = Box(tuple(d[0][0] for d in dims), tuple(e + d[1][1] - 1 for d, e in zip(dims, part.end, strict=True)))
    target = Box(tuple(d[1][0] for d in dims), tuple(e + d[0][1] - 1 for d, e in zip(dims, part.end, strict=True)))
    source = np.arange(stored.size, dtype=f"u{itemsize}").reshape(extent(stored))
    filled, copied = np.zeros(extent(target), source.dtype), np.zeros(extent(target), source.dtype)
    here, there = part.within(stored), part.within(target)
    filled[tuple(map(slice, there.begin, there.end))] = source[tuple(map(slice, here.begin, here.end))]
    data, into = source.tobytes(), memoryview(copied.reshape(-1).view(np.uint8))
    total, last = 0, -1
    for run in runs(part, stored, target, itemsize):
        into[run.target : run.target + run.size] = data[run.source : run.source + run.size]
        total += run.size
        assert run.source > last, "runs come in the order of the file"
        last = run.source
    assert np.array_equal(filled, copied)
    assert total == part.size * itemsize


@given(st.sampled_from(meshes()), st.sampled_from(sorted(SHAPES)))
@settings(max_examples=share_of(60), deadline=None)
def test_layouts_go_through_strategy_files(mesh: tuple[int, int, int], name: str) -> None:
    layout = layouts(mesh)[name]
    if layout is not None:
        assert layout_of(name, sharding_of(layout)) == layout


def test_a_gap_and_an_overlap_are_found(tmp_path: Path) -> None:
    save(tmp_path / "set", (1, 4, 1), once=False)
    opened = open_checkpoint(tmp_path / "set")
    pieces = opened.tensors["bias"].pieces
    whole = box_of(None, (48,))
    assert len(covering_slices(pieces, whole, 0)) == 4
    with pytest.raises(ValueError, match=r"no slice holds element \[12\]"):
        covering_slices([p for p in pieces if p.box.begin != (12,)], whole, 0)
    odd = [*pieces, type(pieces[0])(Box((6,), (18,)), 0, ((0, 48),))]
    with pytest.raises(ValueError, match="two of its slices overlap"):
        covering_slices(odd, whole, 0)


# Strategy files of the stages of a pipeline, put together.


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
