"""How fast slices of a checkpoint are read beside a plain read of the same bytes, and how much memory that takes.

    python -m benchmarks.checkpoints [--gigabytes 4] [--folder DIR]

Writes a set of 8 ranks (data 2 x tensor 4, states of the optimizer sharded over replicas), then loads it with other
strategies, each rank of which is a process of its own, and reads the byte ranges of the same slices with `os.preadv`
into memory of the same size. Last it transforms the set for another strategy. Says the speeds of both, their relation,
and the largest resident memory of any process.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.opening import open_checkpoint
from mspc.checkpoint.sets import publish, rank_file
from mspc.checkpoint.stored_tensors import SHORT, box_at, box_of, chosen, extent, in_file, runs
from mspc.checkpoint.writing import TensorSlice, write_slices
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.plans.files.parameter_layouts import shard_further, sharding_of
from mspc.plans.files.strategy_file import StrategyFile, write_strategies

WIDTH = 4096
STATES = ("", "moment1.", "moment2.")
SAVED = (2, 4, 2)
LOADED = ((4, 2, 4), (1, 4, 1), (8, 1, 1), (1, 1, 1))
"""(data, tensor, further slices of dimension 0 over replicas)."""
LIMIT = 900 << 20
"""Bytes that a rank holds at most."""


def shapes(gigabytes: float) -> dict[str, tuple[int, int]]:
    """Matrices of a transformer's sizes, half of them sharded by rows and half by columns."""
    count = max(1, round(gigabytes * 2**30 / (3 * 4 * WIDTH * WIDTH)))
    return {f"layer{i}.{'up' if i % 2 else 'down'}": (WIDTH, WIDTH) for i in range(count)}


def layouts(tensors: dict[str, tuple[int, int]], mesh: tuple[int, int, int]) -> dict[str, Layout]:
    """How every tensor and its states are sharded."""
    data, tensor, further = mesh
    found: dict[str, Layout] = {}
    for name in tensors:
        dims: list[tuple[int, ...]] = [(), (1,)] if name.endswith("up") else [(1,), ()]
        plain = Layout.of((data, tensor), dims)
        sharded = shard_further((data, tensor), dims, further) if further > 1 else plain
        for state in STATES:
            found[state + name] = sharded if sharded is not None else plain
    return found


def write(folder: Path, gigabytes: float) -> None:
    """The set, one slice in memory at a time."""
    tensors, cuts = shapes(gigabytes), layouts(shapes(gigabytes), SAVED)
    ranks = SAVED[0] * SAVED[1]
    folder.mkdir()
    numbers = np.random.default_rng(0).standard_normal(WIDTH * WIDTH, np.float32)
    start = time.perf_counter()
    for rank in range(ranks):
        slices = [_slice(state + name, shape, cuts[state + name], rank, numbers) for name, shape in tensors.items()
                  for state in STATES]  # fmt: skip
        write_slices(folder / rank_file(rank, 1), slices, {})
    publish(folder, 1, ranks, {})
    spent = time.perf_counter() - start
    size = sum(p.stat().st_size for p in folder.iterdir())
    print(f"written: {size / 2**30:.2f} GiB of {ranks} ranks, {size / spent / 1e9:.2f} GB/s, on the disk", flush=True)


def _slice(name: str, shape: tuple[int, int], layout: Layout, rank: int, numbers: Any) -> TensorSlice:
    box = box_at(layout, rank, shape)
    part = numbers[: math.prod(extent(box))].reshape(extent(box))
    return TensorSlice(name, TensorType(FLOAT32, shape), box.begin, extent(box), str(layout), lambda: part)


def load(folder: Path, mesh: tuple[int, int, int], rank: int, gigabytes: float) -> dict[str, Any]:
    """One rank's load; what it has taken. A rank holds what it has read, unless that alone is more than the limit."""
    cuts = layouts(shapes(gigabytes), mesh)
    start = time.perf_counter()
    opened = open_checkpoint(folder)
    opened.prefer = rank
    share = sum(_share(layout) for layout in cuts.values())
    held: list[Any] = []
    stored = 0
    for name, layout in cuts.items():
        array = opened.read(name, layout.slices_for(rank, opened.tensors[name].type.shape))
        stored += array.nbytes
        if share < LIMIT:
            held.append(array)
        del array
    spent = time.perf_counter() - start
    return {"bytes": opened.files.bytes_read, "floor": stored, "seconds": spent, "rss": peak(), "kept": bool(held)}


def _share(layout: Layout) -> int:
    """Bytes of one rank."""
    return 4 * math.prod(layout.local_shape((WIDTH, WIDTH)))


def plain(folder: Path, mesh: tuple[int, int, int], rank: int, gigabytes: float) -> dict[str, Any]:
    """The same bytes of the same files into memory of the same size, by reads alone; what lies in short runs is read as
    far as it lies together."""
    cuts = layouts(shapes(gigabytes), mesh)
    ranges: list[list[tuple[int, int, int]]] = []
    opened = open_checkpoint(folder)
    for name, layout in cuts.items():
        stored = opened.tensors[name]
        wanted = box_of(layout.slices_for(rank, stored.type.shape), stored.type.shape)
        ranges.append(list(_spans(chosen(stored.pieces, wanted, rank), wanted)))
    keeps = sum(map(_share, cuts.values())) < LIMIT
    descriptors = [os.open(path, os.O_RDONLY) for path in opened.files.paths]
    start = time.perf_counter()
    total = 0
    held: list[Any] = []
    for spans in ranges:
        array = np.empty(sum(size for _, _, size in spans), np.uint8)
        room, at = memoryview(array), 0
        for file, offset, length in spans:
            at += os.preadv(descriptors[file], [room[at : at + length]], offset)
        total += at
        if keeps:
            held.append(array)
        del room, array
    return {"bytes": total, "seconds": time.perf_counter() - start, "rss": peak()}


def _spans(parts: Any, wanted: Any) -> Iterator[tuple[int, int, int]]:
    for piece, part in parts:
        for run in runs(part, piece.box, wanted, 4):
            for offset, size in in_file(piece.segments, run.source, run.size):
                yield piece.file, offset, size


def peak() -> int:
    """The largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def drop(folder: Path) -> None:
    """Have the system forget what it keeps of the files, as far as it does so when asked."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def in_process(kind: str, folder: Path, mesh: tuple[int, int, int], rank: int, gigabytes: float) -> dict[str, Any]:
    """One measurement in a process of its own."""
    arguments = [kind, str(folder), json.dumps(mesh), str(rank), str(gigabytes)]
    command = [sys.executable, "-m", "benchmarks.checkpoints", "--one", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def compare(folder: Path, gigabytes: float, rounds: int) -> None:
    """Every strategy, from the system's memory and from the disk; the best of some rounds, in turns."""
    for mesh in LOADED:
        ranks = mesh[0] * mesh[1]
        for cold in (False, True):
            speeds: dict[str, float] = {}
            memory, keeps = 0, False
            for _ in range(rounds):
                for kind in ("plain", "load"):
                    if cold:
                        drop(folder)
                    else:
                        in_process("plain", folder, mesh, ranks - 1, gigabytes)
                    found = in_process(kind, folder, mesh, ranks - 1, gigabytes)
                    speeds[kind] = max(speeds.get(kind, 0.0), found["bytes"] / found["seconds"])
                    memory = max(memory, found["rss"])
                    if kind == "load":
                        keeps = found["kept"]
                        assert found["bytes"] == found["floor"], found
            where = "disk" if cold else "memory"
            plain_speed, load_speed = speeds["plain"] / 1e9, speeds["load"] / 1e9
            print(
                f"data {mesh[0]} x tensor {mesh[1]}, further {mesh[2]}, from {where}: plain {plain_speed:.2f} GB/s, "
                f"load {load_speed:.2f} GB/s, {100 * load_speed / plain_speed:.0f} %, peak {memory / 2**20:.0f} MiB "
                f"{'with all slices of the rank' if keeps else 'with one tensor at a time'}",
                flush=True,
            )


def transform(folder: Path, out: Path, gigabytes: float) -> dict[str, Any]:
    """All ranks' files for another strategy, in this process."""
    from mspc.parallel import transform_checkpoints

    cuts = layouts(shapes(gigabytes), LOADED[0])
    strategies = folder.parent / "target.ckpt"
    write_strategies(strategies, StrategyFile({}, {name: sharding_of(layout) for name, layout in cuts.items()}))
    start = time.perf_counter()
    transform_checkpoints(str(folder), str(out), "CKP", None, str(strategies), 1, "safetensors")
    size = sum(p.stat().st_size for p in out.rglob("*.safetensors"))
    return {"bytes": size, "seconds": time.perf_counter() - start, "rss": peak()}


def main() -> None:
    """Write, load, transform."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--one", nargs=5)
    given = parser.parse_args()
    if given.one:
        kind, folder, mesh, rank, gigabytes = given.one
        work = {"load": load, "plain": plain}.get(kind)
        if work is None:
            print(json.dumps(transform(Path(folder), Path(folder).parent / "out", float(gigabytes))))
            return
        print(json.dumps(work(Path(folder), tuple(json.loads(mesh)), int(rank), float(gigabytes))))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as created:
        folder = Path(created) / "set"
        write(folder, given.gigabytes)
        compare(folder, given.gigabytes, given.rounds)
        found = in_process("transform", folder, SAVED, 0, given.gigabytes)
        print(
            f"transformed: {found['bytes'] / 2**30:.2f} GiB, {found['bytes'] / found['seconds'] / 1e9:.2f} GB/s, "
            f"peak {found['rss'] / 2**20:.0f} MiB; runs below {SHORT} bytes are copied from the files' pages"
        )


if __name__ == "__main__":
    main()
