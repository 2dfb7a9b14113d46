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
            "sizes": [[[str(n) for n in row["tensors"]], row["real"], row["small"]] for row in content["sizes"]],
            "compared": len(content["values"]),
            "values": _values(content["values"]),
            "placed": 0 if content["memory"] is None else int(content["memory"]["values"]),
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise MspcError(f"{path} is damaged: {type(error).__name__}: {error}", notes=[HOW]) from None


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
        or not all(isinstance(content.get(name), int) for name in COUNTS)
        or not isinstance(content.get("seconds"), int | float)
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
        by_step[row["step"]] = by_step.get(row["step"], 0) + int(row["ranks"])
    made = [
        [
            *key, max(ranks[key].values()), _number(row["difference"]), _number(row["tolerance"]), bool(row["same"]),
            [] if row["same"] else [row["step"], row["rank"], row["element"]],
        ]
        for key, row in worst.items()
    ]  # fmt: skip
    return sorted(made, key=lambda row: row[5])


def _order(row: Content) -> tuple[bool, int, float]:
    """What is wrong is larger, the earlier the more, and then what is further apart for what it may be."""
    difference, tolerance = float(row["difference"]), float(row["tolerance"])
    wrong = not row["same"]
    return wrong, -int(row["step"]) * wrong, difference / tolerance if tolerance else difference


def _number(number: Any) -> float | None:
    """As the page has it: None for what is endless."""
    return float(f"{number:.3g}") if math.isfinite(number) else None
