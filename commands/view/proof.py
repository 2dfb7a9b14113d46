"""The page shows what `mspc verify --scale` has found of a compile."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mspc.commands.view.dump import Dump
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json
from mspc.ir.files.regular import read_bytes
from mspc.ir.graph import Node
from mspc.ops.control.structural import label_of_result

HOW = "mspc verify --scale TARGET --json FILE writes one"
COUNTS = ("ranks", "kinds", "steps", "seed")
LARGEST = 1 << 63
"""Whole numbers below are numbers of Float64, too."""
Content = Mapping[str, Any]


def read_proof(path: Path, dump: Dump) -> dict[str, Any]:
    """What the page shows of a report. `values` has a row for each value: [what, name, ranks, the largest difference,
    what was allowed there, whether all were the same, the step, rank and element of the first that was not]; those that
    differ are the first. `node` is that of the first failure: [program, place], None where it is not known.

    Raises:
        MspcError: the file cannot be read or is no such report, or it is of another compile.
    """
    if dump.module is not None:
        raise MspcError("--proof is for the folder of a compile, not for one graph")
    content = _content(path)
    if content["ranks"] != dump.ranks:
        raise MspcError(f"{path} is of another compile: it is of {content['ranks']} ranks, this is of {dump.ranks}")
    own = str(content.get("compile_id", ""))
    if own and dump.compile_id and own != dump.compile_id:
        raise MspcError(f"{path} is of another compile: it is of {own}, this is {dump.compile_id}")
    try:
        return {
            **{name: content[name] for name in (*COUNTS, "equal", "seconds")},
            "said": [str(text) for text in content["said"]],
            "place": str(_failure(content).get("place", "")),
            "node": _node(_failure(content), dump),
            "sizes": [
                [[str(name) for name in row["tensors"]], _counts(row, "real"), _counts(row, "small")]
                for row in content["sizes"]
            ],
            "compared": len(content["values"]),
            "values": _values(content["values"]),
            "placed": 0 if content["memory"] is None else _count(content["memory"], "values"),
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        what = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise MspcError(f"{path} is damaged: {what}", notes=[HOW]) from None


def _content(path: Path) -> dict[str, Any]:
    try:
        content = parsed_json(read_bytes(path))
    except FileNotFoundError:
        raise MspcError(f"there is no report {str(path)!r}", notes=[HOW]) from None
    except ValueError as error:
        raise MspcError(f"{path} is no report of a proof: {error}", notes=[HOW]) from None
    except OSError as error:
        raise MspcError(f"cannot read {path}: {error.strerror}") from None
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("equal"), bool)
        or not all(_is_count(content.get(name)) for name in COUNTS)
        or not _is_number(content.get("seconds"))
        or not math.isfinite(content["seconds"])
    ):
        raise MspcError(f"{path} is no report of mspc verify --scale", notes=[HOW])
    return content


def _failure(content: Content) -> Content:
    """What is told first: an operator with its place and ranks; empty where nothing is wrong."""
    waiting, memory = content["waiting"], content["memory"]
    misuses = [] if memory is None else memory["misuses"]
    found = content["odd"] or content["first"] or (waiting or [content["failed"]])[0] or (misuses or [{}])[0]
    if not isinstance(found, dict):
        raise TypeError(f"{found!r:.80} names no operator")
    return found


def _node(failure: Content, dump: Dump) -> list[int] | None:
    """The node that is told, where a rank's program has one of its name at its place."""
    rank = failure["ranks"][0] if failure.get("ranks") else failure.get("rank")
    number = next((i for i, ranks in enumerate(dump.ranks_of) if rank in ranks), None)
    if number is None:
        return None
    wanted = failure.get("operator"), failure.get("place"), failure.get("scope")
    found = [i for i, node in enumerate(dump.programs[number].nodes) if _told(node) == wanted]
    return [number, found[0]] if len(found) == 1 else None


def _told(node: Node) -> tuple[str, str, str]:
    return label_of_result(node), str(node.frames[0]) if node.frames else "", node.scope


def _values(rows: list[Any]) -> list[list[Any]]:
    """One row for all kinds and steps of a value: the one that is most apart, in the first step that is wrong."""
    worst: dict[tuple[str, str], Content] = {}
    ranks: dict[tuple[str, str], dict[int, int]] = {}
    for row in rows:
        key = str(row["value"]), str(row["name"])
        if key not in worst or _order(row) > _order(worst[key]):
            worst[key] = row
        by_step = ranks.setdefault(key, {})
        by_step[_count(row, "step")] = by_step.get(row["step"], 0) + _count(row, "ranks")
    made = [
        [
            *key, max(ranks[key].values()), _shown(_number(row, "difference")),
            _shown(_number(row, "tolerance")), _same(row),
            [] if _same(row) else [row["step"], _rank(row), _counts(row, "element")],
        ]
        for key, row in worst.items()
    ]  # fmt: skip
    return sorted(made, key=lambda row: row[5])


def _order(row: Content) -> tuple[bool, int, float]:
    """What is wrong is larger, the earlier the more, and then what is further apart for what it may be."""
    difference, tolerance = _number(row, "difference"), _number(row, "tolerance")
    wrong = not _same(row)
    return wrong, -_count(row, "step") * wrong, difference / tolerance if tolerance else difference


def _shown(number: float) -> float | None:
    """As the page has it: None for what is endless."""
    return float(f"{number:.3g}") if math.isfinite(number) else None


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < LARGEST)


def _count(row: Content, key: str) -> int:
    """An entry that counts. Raises ValueError for any other, KeyError where it is missing."""
    if not _is_count(row[key]):
        raise ValueError(f"{key} is {row[key]!r:.80}, not a number that counts")
    return row[key]


def _counts(row: Content, key: str) -> list[int]:
    """A list of such. Raises as `_count`."""
    if not isinstance(row[key], list) or not all(map(_is_count, row[key])):
        raise ValueError(f"{key} is {row[key]!r:.80}, not a list of numbers that count")
    return row[key]


def _rank(row: Content) -> int:
    """The rank that a value is wrong on, -1 where it is none's alone. Raises as `_count`."""
    return -1 if row["rank"] == -1 else _count(row, "rank")


def _number(row: Content, key: str) -> float:
    """An entry that measures; it may be endless. Raises as `_count`."""
    if not _is_number(row[key]):
        raise ValueError(f"{key} is {row[key]!r:.80}, not a number")
    return float(row[key])


def _same(row: Content) -> bool:
    """Raises as `_count`."""
    if not isinstance(row["same"], bool):
        raise ValueError(f"same is {row['same']!r:.80}, not true or false")
    return row["same"]
