"""`mspc ckpt` shows the contents of checkpoints, compares two of them, and converts checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.files import write_slices_to
from mspc.checkpoint.mindspore_file import Entry, write_file
from mspc.checkpoint.sets import open_checkpoint, rank_state
from mspc.checkpoint.sliced import layouts_in, ranks_of, slices_of
from mspc.checkpoint.stored_tensors import Checkpoint, TensorPieces, box_of_shape
from mspc.commands.report.tables import TextTable, print_line, print_table, size_text, write_report
from mspc.commands.report.verbosity import ProgressLine
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_files, check_writable, write_atomically
from mspc.mindspore_api.parallel.checkpoint_transform import open_folder, transform_checkpoints

STDOUT = Path("-")
SHOWN = ("epoch", "step", "total_step", "data")
"""Entries of a run's state that are shown."""


def opened(path: Path, strategy: Path | None, may_be_slices: bool = False) -> Checkpoint:
    """Open a checkpoint of any kind. may_be_slices: see `open_folder`. Raise MspcError if it cannot be opened."""
    layouts = layouts_in(strategy)
    if not path.exists():
        raise MspcError(f"there is no checkpoint {str(path)!r}", code="E0601")
    if path.is_dir():
        return open_folder(path, layouts, may_be_slices)
    if strategy is not None:
        raise MspcError(f"{path} is one file; --strategy goes with a folder of files of all ranks")
    return open_checkpoint(path)


def show_checkpoint(path: Path, strategy: Path | None, json: Path | None) -> None:
    """List the tensors of a checkpoint. Raise MspcError if it cannot be read."""
    source = opened(path, strategy, may_be_slices=True)
    rows = [_described(name, source.tensors[name]) for name in sorted(source.tensors)]
    total = sum(row["bytes"] for row in rows)
    state = {key: source.state[key] for key in SHOWN if source.state.get(key) is not None}
    if json is not None:
        facts = {"checkpoint": str(path), "ranks": source.ranks, "sequence": source.sequence, "bytes": total}
        content = {**facts, "state": state, "texts": dict(source.texts), "tensors": rows}
        write_report(json, "ckpt show", content)
    if json == STDOUT:
        return
    cells = [
        (
            r["name"], r["dtype"], f"({', '.join(map(str, r['shape']))})", r["layout"] or "-", str(r["slices"]),
            size_text(r["bytes"]),
        )
        for r in rows
    ]  # fmt: skip
    title = f"{len(rows)} tensors, {size_text(total)}"
    print_table(TextTable(title, ("tensor", "type", "shape", "layout", "slices", "bytes"), cells))
    for key, value in {**state, **source.texts}.items():
        print_line(f"{key}: {value}")


def _described(name: str, stored: TensorPieces) -> dict[str, Any]:
    return {
        "name": name, "dtype": stored.type.dtype.name, "shape": list(stored.type.shape), "layout": stored.layout,
        "slices": len({piece.box for piece in stored.pieces}), "bytes": stored.type.nbytes,
        "checksums": sorted({piece.checksum for piece in stored.pieces if piece.checksum}),
    }  # fmt: skip


def diff_checkpoints(paths: tuple[Path, Path], strategies: tuple[Path | None, Path | None], json: Path | None) -> int:
    """Compare two checkpoints, tensor by tensor, and return the exit status. Raise MspcError if one cannot be read."""
    first, second = (opened(path, strategy) for path, strategy in zip(paths, strategies, strict=True))
    names = sorted({*first.tensors, *second.tensors})
    found: list[dict[str, str]] = []
    with ProgressLine() as progress:
        for done, name in enumerate(names, 1):
            progress.show(f"comparing {name} ({done} of {len(names)})")
            difference = _difference(first, second, name, paths)
            if difference:
                found.append({"name": name, "difference": difference})
    if json is not None:
        content = {"equal": not found, "tensors": len(names), "differences": found}
        write_report(json, "ckpt diff", content, int(bool(found)))
    if json != STDOUT:
        if found:
            print_table(TextTable("", ("tensor", "difference"), [(row["name"], row["difference"]) for row in found]))
        differ = f"differs: {len(found)} of {len(names)} tensors"
        print_line(differ if found else f"equal: {len(names)} tensors, bit for bit")
    return int(bool(found))


def _difference(first: Checkpoint, second: Checkpoint, name: str, paths: tuple[Path, Path]) -> str:
    if name not in first.tensors or name not in second.tensors:
        return f"only in {paths[name in second.tensors]}"
    one, other = first.tensors[name].type, second.tensors[name].type
    if one != other:
        return f"{one} and {other}"
    left, right = first.read(name), second.read(name)
    if left.tobytes() == right.tobytes():
        return ""
    unlike = left != right
    count, size = int(np.count_nonzero(unlike)), left.size
    if not count:
        return "bits of zeros or NaNs"
    with np.errstate(all="ignore"):
        distance = np.abs(left.astype(np.float64) - right.astype(np.float64))
    largest = float(np.max(distance[unlike]))
    return f"{count} of {size} elements, by {largest:.6g} at most"


def merge_checkpoint(path: Path, out: Path, strategy: Path | None, json: Path | None) -> None:
    """Write the global tensors of a checkpoint into one file. Raise MspcError if a file cannot be read or written."""
    check_files({"FILE": out, "--json": None if json == STDOUT else json})
    if out.suffix not in (".ckpt", ".safetensors"):
        raise MspcError(f"{out} ends in neither .safetensors nor .ckpt, so its format is not known", code="E0603")
    check_writable(out)
    source = opened(path, strategy)
    names, done = sorted(source.tensors), 0
    with ProgressLine() as progress:

        def read(name: str) -> Any:
            nonlocal done
            done += 1
            progress.show(f"merging {name} ({done} of {len(names)})")
            return source.read(name)

        if out.suffix == ".ckpt":
            entries = [Entry(name, source.tensors[name].type, lambda name=name: read(name)) for name in names]
            entries += [Entry(name, None, lambda text=text: text) for name, text in source.texts.items()]
            write_atomically(out, lambda file: write_file(file, entries))
        else:
            boxes = {name: box_of_shape(source.tensors[name].type.shape) for name in names}
            slices = slices_of(source, {}, boxes, read)
            about: dict[str, Any] = {"texts": dict(source.texts)}
            if source.state:
                about |= {"state": dict(source.state), "sequence": source.sequence, "own": rank_state(source, 0)}
            write_atomically(out, lambda file: write_slices_to(file, slices, about))
    total = sum(source.tensors[name].type.nbytes for name in names)
    if json is not None:
        write_report(json, "ckpt merge", {"file": str(out), "tensors": len(names), "bytes": total})
    if json != STDOUT:
        print_line(f"{out}: {len(names)} tensors, {size_text(total)}")


def transform_checkpoint(
    path: Path, out: Path, strategy: Path | None, to: Path | None, prefix: str, format: str, processes: int,
    json: Path | None,
) -> None:  # fmt: skip
    """Write the files of a checkpoint for another strategy. Raise MspcError if a file cannot be read or written."""
    ranks = ranks_of(layouts_in(to))
    with ProgressLine() as progress:
        progress.show(f"writing {ranks} rank{'s' if ranks > 1 else ''}")
        transform_checkpoints(
            str(path), str(out), prefix, strategy, to, processes, format,
            lambda done, ranks: progress.show(f"written: {done} of {ranks} ranks"),
        )  # fmt: skip
    files = [str(out / f"rank_{rank}" / f"{prefix}{rank}.{format}") for rank in range(ranks)]
    if json is not None:
        write_report(json, "ckpt transform", {"files": files})
    if json != STDOUT:
        print_line(f"{out}: {ranks} rank{'s' if ranks > 1 else ''}, {files[0]}{' and so on' if ranks > 1 else ''}")


def check_checkpoint(path: Path, strategy: Path | None, json: Path | None) -> int:
    """Verify everything in a checkpoint and return the exit status. Raise MspcError if it cannot even be opened."""
    source = opened(path, strategy, may_be_slices=True)
    damaged: list[dict[str, str]] = []
    with ProgressLine() as progress:
        for done, (name, wrong) in enumerate(source.verified(), 1):
            progress.show(f"checking {name} ({done} of {len(source.headers) + len(source.tensors)})")
            if wrong:
                damaged.append({"name": name, "damage": wrong})
    unchecked = len(source.unchecked())
    if json is not None:
        facts = {"whole": not damaged, "tensors": len(source.tensors), "without_checksum": unchecked}
        facts["headers_compared"] = source.is_sealed
        write_report(json, "ckpt check", {**facts, "damaged": damaged}, int(bool(damaged)))
    if json != STDOUT:
        for row in damaged:
            print_line(f"damaged: {row['name']}: {row['damage']}")
        if not damaged:
            rest = f", {unchecked} of them without a checksum that can be compared here" if unchecked else ""
            rest += "" if source.is_sealed else "; its headers have no checksums, or none that can be compared here"
            print_line(f"complete: {len(source.tensors)} tensors, {size_text(source.files.bytes_read)}{rest}")
    return int(bool(damaged))
