"""Files with the slices of one rank each: assembled by a strategy file, and rewritten for other strategies."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mspc.checkpoint.files import Files, TensorSlice, make_synced_folder, write_slices, write_synced
from mspc.checkpoint.mindspore_file import Entry, write_file
from mspc.checkpoint.sets import open_checkpoint
from mspc.checkpoint.stored_tensors import (
    Checkpoint,
    StoredSlice,
    TensorPieces,
    box_at,
    covering_slices,
    extent,
    file_ranges,
)
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import tidy_when_terminated
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.plans.files.strategy_file import StrategyFile, layout_of, read_strategies
from mspc.sharding.pieces import Box

Layouts = Mapping[str, Layout]
FORMATS = ("ckpt", "safetensors")
STRATEGY = "strategy_ckpt_save_file and AutoParallel.save_param_strategy_file write the strategy file"
COMPARED_BYTES = 4096
"""Number of leading bytes of a tensor that are compared between files of ranks."""


def layouts_of(strategies: StrategyFile) -> dict[str, Layout]:
    """Return the layouts of a strategy file's parameters, which a file of several stages names `STAGE-NAME`. Raise
    MspcError for invalid layouts, and if two stages shard a parameter differently."""
    found: dict[str, Layout] = {}
    for name, sharding in strategies.parameters.items():
        stage, _, rest = name.partition("-")
        own = rest if rest and stage.isdigit() else name
        layout = layout_of(own, sharding)
        if found.setdefault(own, layout) != layout:
            raise MspcError(f"a strategy file shards {own!r} as {found[own]} and, in stage {stage}, as {layout}")
    return found


def layouts_in(path: Path | None) -> dict[str, Layout]:
    """Return the layouts of a strategy file; {} without a file. Raise MspcError."""
    return {} if path is None else layouts_of(read_strategies(path))


def ranks_of(layouts: Layouts) -> int:
    """Return the number of ranks; 1 if nothing is sharded. Raise MspcError if layouts disagree."""
    counts = {layout.ranks for layout in layouts.values()}
    if len(counts) > 1:
        raise MspcError(f"a strategy file has parameters on {sorted(counts)} ranks; it must be one number")
    return counts.pop() if counts else 1


def open_slices(paths: Mapping[int, Path], layouts: Layouts, name: str = "") -> Checkpoint:
    """Open files, given by rank, as one checkpoint.

    layouts: of sharded tensors; every file has all other tensors. Not needed for files with slice positions. For a
    network of several stages they are of one stage's ranks: files of later ranks belong to the next stages. Raise
    MspcError if a file is missing or damaged, or does not fit the layouts.
    """
    ranks = sorted(paths)
    opened = [open_checkpoint(paths[rank]) for rank in ranks]
    tensors: dict[str, TensorPieces] = {}
    texts: dict[str, str] = {}
    of_stage: dict[str, int] = {}
    for number, (rank, part) in enumerate(zip(ranks, opened, strict=True)):
        texts.update(part.texts)
        for key, stored in part.tensors.items():
            found = _placed(key, stored, rank, layouts.get(key), number, paths[rank])
            known = tensors.get(key)
            stage = rank // layouts[key].ranks if key in layouts else 0
            if of_stage.setdefault(key, stage) != stage:
                continue  # an earlier stage also has it
            if known is not None and known.type != found.type:
                raise MspcError(f"{paths[rank]} has {key!r} of {found.type}, other files have {known.type}")
            tensors[key] = found if known is None else replace(known, pieces=(*known.pieces, *found.pieces))
    shown = name or f"the checkpoint of {paths[ranks[0]]} and {len(ranks) - 1} more"
    return Checkpoint(shown, Files([paths[r] for r in ranks], [None] * len(ranks)), tensors, texts=texts,
                      ranks=len(ranks), is_sealed=all(part.is_sealed for part in opened))  # fmt: skip


def check_replicated(checkpoint: Checkpoint) -> None:
    """Check that files without layouts start with equal bytes in every tensor; otherwise they may be slices. Raise
    MspcError."""
    for name, stored in sorted(checkpoint.tensors.items()):
        first, *others = [piece for piece in stored.pieces if not piece.checksum] or [None]
        if first is None or not others:
            continue
        begin = _begin(checkpoint.files, first)
        for piece in others:
            if _begin(checkpoint.files, piece) != begin:
                one, other = (checkpoint.files.paths[p.file] for p in (first, piece))
                raise MspcError(
                    f"{one} and {other} have other values in {name!r}, so they may be slices, and no strategy file "
                    "says how these are put together",
                    notes=[STRATEGY, "if each rank has its own values, such as running statistics, give one file"],
                    kind=ValueError,
                )  # fmt: skip


def _begin(files: Files, piece: StoredSlice) -> bytes:
    found = bytearray(min(COMPARED_BYTES, sum(size for _, size in piece.segments)))
    at = 0
    for offset, size in file_ranges(piece.segments, 0, len(found)):
        files.read_into(piece.file, offset, memoryview(found)[at : at + size])
        at += size
    return bytes(found)


def _placed(key: str, stored: TensorPieces, rank: int, layout: Layout | None, number: int, path: Path) -> TensorPieces:
    (piece,) = stored.pieces
    own = extent(piece.box)
    if piece.checksum or layout is None:  # its position is in the file, or it is replicated
        return replace(stored, pieces=(replace(piece, file=number),))
    if len(layout.dims) != len(own):
        raise MspcError(f"{path} has {key!r} of shape {own}, the strategy file shards {len(layout.dims)} dimensions")
    global_shape = tuple(n * c for n, c in zip(own, layout.strategy, strict=True))
    box = box_at(layout, rank, global_shape)
    own = StoredSlice(box, number, piece.segments, piece.checksum)
    return TensorPieces(TensorType(stored.type.dtype, global_shape), (own,),
                  str(layout))  # fmt: skip


def needed_ranks(rank: int, source: Layouts, target: Layouts) -> list[int]:
    """Return the ranks whose files a rank of the target needs, ascending."""
    found: set[int] = set()
    for name, layout in source.items():
        wanted = target.get(name)
        others = layout if wanted is None or len(wanted.dims) != len(layout.dims) else wanted
        shape = tuple(math.lcm(a, b) for a, b in zip(layout.strategy, others.strategy, strict=True))
        box = box_at(wanted, rank, shape)
        pieces = [StoredSlice(box_at(layout, r, shape), r, ()) for r in range(layout.ranks)]
        found.update(piece.file for piece, _ in covering_slices(pieces, box, rank))
    return sorted(found) or [0]


def check_divides(checkpoint: Checkpoint, layouts: Layouts) -> None:
    """Check that the layouts fit the tensors of a checkpoint. Raise MspcError."""
    for name, layout in layouts.items():
        stored = checkpoint.tensors.get(name)
        if stored is None:
            continue
        shape = stored.type.shape
        if len(layout.dims) != len(shape) or not layout.divides(shape):
            raise MspcError(
                f"the strategy file shards {name!r} as {layout.strategy}, in the checkpoint it has shape {shape}",
                notes=["the strategy file is of another network"], kind=ValueError,
            )  # fmt: skip
    known = [name for name in layouts if name in checkpoint.tensors]
    if layouts and not known:
        named, found = (", ".join(sorted(each)[:5]) for each in (layouts, checkpoint.tensors))
        raise MspcError(
            f"no parameter of the strategy file is in {checkpoint.name}", kind=ValueError,
            notes=[f"the file names {named}; the checkpoint {found}"],
        )  # fmt: skip


def write_part(source: Checkpoint, layouts: Layouts, rank: int, path: Path, format: str) -> None:
    """Write a rank's slices of a checkpoint under other layouts, with one slice in memory at a time. Raise MspcError if
    the source is damaged, or the file cannot be written."""
    make_synced_folder(path.parent)
    boxes = {n: box_at(layouts.get(n), rank, s.type.shape) for n, s in source.tensors.items()}
    if format == "ckpt":
        entries = [
            Entry(name, TensorType(stored.type.dtype, extent(boxes[name])), _maker(source, name, boxes[name]))
            for name, stored in sorted(source.tensors.items())
        ]
        entries += [Entry(name, None, lambda text=text: text) for name, text in source.texts.items()]
        write_synced(path, lambda file: write_file(file, entries))
        return
    write_slices(path, slices_of(source, layouts, boxes), {"texts": dict(source.texts)} if source.texts else {})


def slices_of(
    source: Checkpoint, layouts: Layouts, boxes: Mapping[str, Box], read: Callable[[str], Any] | None = None
) -> list[TensorSlice]:
    """Return the slices in these boxes for writing. read: returns global tensors, for boxes that cover them."""
    return [
        TensorSlice(
            name, stored.type, boxes[name].begin, extent(boxes[name]), str(layouts.get(name, "")),
            _maker(source, name, boxes[name]) if read is None else partial(read, name),
        )
        for name, stored in sorted(source.tensors.items())
    ]  # fmt: skip


def _maker(source: Checkpoint, name: str, box: Box) -> Callable[[], Any]:
    return lambda: source.read(name, tuple(map(slice, box.begin, box.end)))


def in_threads(work: Sequence[Callable[[], object]], threads: int, done: Callable[[int], object]) -> None:
    """Run functions in several threads; `done` is called with the number of completed ones. Raise the error of one of
    them."""
    lock, count = threading.Lock(), 0

    def one(task: Callable[[], object]) -> None:
        nonlocal count
        task()
        with lock:
            count += 1
            done(count)

    if threads <= 1:
        for task in work:
            one(task)
        return
    from concurrent.futures import ThreadPoolExecutor  # slow to import, and hardly ever needed

    with tidy_when_terminated(), ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(one, task) for task in work]:
            future.result()


def rank_folders(folder: Path) -> Iterator[tuple[int, Path]]:
    """Yield (rank, newest file) of a folder with one folder per rank, `rank_0` and so on. Raise MspcError."""
    ranks = sorted((int(p.name[5:]), p) for p in folder.glob("rank_*") if p.name[5:].isdigit() and p.is_dir())
    if not ranks:
        raise MspcError(f"{folder} has no folders rank_0, rank_1, ...")
    for rank, inner in ranks:
        files = [p for format in FORMATS for p in sorted(inner.glob(f"*.{format}"))]
        if files:
            yield rank, files[-1]
