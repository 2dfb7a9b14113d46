"""Output of `mspc verify --scale`: the compared values, the reduced sizes, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mspc.commands.report.tables import TextTable, alike, print_line, print_table, write_report
from mspc.commands.report.verbosity import Loudness
from mspc.commands.report.verification import print_untaken
from mspc.ir.diagnostics import ExecutionError, ranks_listed
from mspc.ir.graph import Node
from mspc.ops.control.structural import label_of_result
from mspc.verify.scale.compared import Compared
from mspc.verify.scale.proof import STEPS, ScaleProof
from mspc.verify.scale.rank_kinds import RankKind

MAX_ROWS = 12
"""Most rows of differing values that are printed."""
FEW_RANKS = 6


def report_scale(
    found: ScaleProof, json: Path | None, loudness: Loudness, seed: int, seconds: float, notes: Sequence[str] = (),
    compile_id: str = "",
) -> None:  # fmt: skip
    """Print the table and the verdict. seed: of all values. seconds: total duration. notes: for the user. compile_id:
    of the folder, "" for a script. Raise ExecutionError if a value differs, ranks wait for each other, or a node cannot
    be computed."""
    if json is not None:
        run = {"notes": list(notes), "compile_id": compile_id, "seed": seed, "seconds": round(seconds, 2)}
        write_report(json, "verify --scale", {**_content(found), **run}, int(not found.same))
    wrong = [row for row in found.rows if not row.same]
    if json != Path("-"):
        if not loudness.quiet:
            _show(found, wrong, seed)
        compared = f"{len(found.rows)} values of {_ranks(found)} in {seconds:.1f} s"
        sizes = "their own" if found.whole else "small"
        print_line(f"{'equal' if found.same else 'differs'}: {compared}, {STEPS} steps in Float64 at {sizes} sizes")
        if found.loss:
            print_line(f"each rank has the loss of its own rows: their {found.loss} is compared")
    if found.same:
        return
    raise ExecutionError(_what(found, wrong), notes=[*first_wrong(found), *notes], frames=_frames(found))


def _ranks(found: ScaleProof) -> str:
    return f"{found.ranks} ranks of {found.kinds} kind{'s' * (found.kinds != 1)}"


def _show(found: ScaleProof, wrong: Sequence[Compared], seed: int) -> None:
    rows = [
        (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more", str(real), str(small))
        for (real, small), names in _by_size(found).items()
    ]
    print_table(
        TextTable(f"sizes of inputs and parameters, values from seed {seed}", ("tensor", "real", "small"), rows)
    )
    print_untaken(found.untaken)
    if wrong:
        cells = [
            (
                row.what, row.name, str(row.step + 1), str(row.rank), str(row.place),
                f"{row.expected:.6g}", f"{row.found:.6g}",
            )
            for row in wrong[:MAX_ROWS]
        ]  # fmt: skip
        heads = ("value", "name", "step", "rank", "element", "one device", "the rank")
        print_table(TextTable(f"{len(wrong)} values differ", heads, cells, (2, 3, 5, 6)))


def _by_size(found: ScaleProof) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]]:
    """Return the names of tensors by their (real shape, reduced shape)."""
    return alike((name for name, (real, _) in found.sizes.items() if len(real) > 1), lambda name: found.sizes[name])


def _what(found: ScaleProof, wrong: Sequence[Compared]) -> str:
    if found.stuck:
        where = "; ".join(f"rank {kind.ranks[0]} at {node.label}" for kind, node in found.stuck[:FEW_RANKS])
        return f"ranks wait for each other: {where}"
    if found.failed is not None:
        kind, node, reason = found.failed
        return f"{node.label} cannot be computed on rank {kind.ranks[0]}: {reason}"
    if not wrong and found.memory is not None:
        kind, misuse = found.memory.misuses[0]
        return f"memory of rank {kind.ranks[0]}: at {misuse.node.label} {misuse.why}"
    return f"{len(wrong)} of {len(found.rows)} values of {_ranks(found)} differ from one device"


def first_wrong(found: ScaleProof) -> list[str]:
    """Return sentences on the first wrong value, and on the one difference in the programs of a few ranks."""
    first, odd = found.first, found.odd
    said = [] if odd is None else [odd.words]
    if first is None:
        return said
    cell = first.node.scope.removeprefix("Default").lstrip("/")
    label = label_of_result(first.node) + f" in {cell}" * bool(cell)
    said.append(f"the first wrong value is that of {label} on {ranks_listed(first.ranks)}")
    said += [first.equals] * bool(first.equals)
    if name := _only_wrong(found):
        said.append(f"of all parameters it makes {name} wrong first")
    return [*said, *first.reads]


def _only_wrong(found: ScaleProof) -> str:
    """Return the parameter if all wrong values of the first wrong step are its own: it, its gradient and its states."""
    wrong = [row for row in found.rows if not row.same]
    names = {row.name for row in wrong if row.step == wrong[0].step and row.what in ("gradient", "parameter")}
    last = min(names, key=len, default="")
    others = {row.name for row in found.rows if row.what in ("gradient", "parameter")} - names
    return last if others and all(name == last or name.endswith(f".{last}") for name in names) else ""


def told_nodes(found: ScaleProof) -> list[tuple[int, RankKind, Node]]:
    """Return (rank, its kind, node) of the nodes that the message reports."""
    if found.odd is not None:
        return [(found.odd.kind.ranks[0], found.odd.kind, found.odd.node)]
    if found.first is not None:
        mine = [rank for rank in found.first.ranks if rank in found.first.kind.place]
        return [(rank, found.first.kind, found.first.node) for rank in mine[:1]]
    if found.failed is not None:
        return [(found.failed[0].ranks[0], found.failed[0], found.failed[1])]
    return [(kind.ranks[0], kind, node) for kind, node in found.stuck[:FEW_RANKS]]


def _frames(found: ScaleProof) -> Any:
    misuses = found.memory.misuses if found.memory is not None and all(row.same for row in found.rows) else ()
    nodes = [
        *(each.node for each in (found.odd, found.first) if each is not None), *(node for _, node in found.stuck),
        *([] if found.failed is None else [found.failed[1]]), *(misuse.node for _, misuse in misuses),
    ]  # fmt: skip
    return nodes[0].frames if nodes else ()


def _where(node: Node) -> dict[str, str]:
    """Return the position of a node in the script and its scope in the network."""
    return {"place": str(node.frames[0]) if node.frames else "", "scope": node.scope}


def _content(found: ScaleProof) -> dict[str, Any]:
    first = found.first
    wrong = [row for row in found.rows if not row.same]
    return {
        "equal": found.same,
        "said": [] if found.same else [_what(found, wrong), *first_wrong(found)],
        "ranks": found.ranks,
        "kinds": found.kinds,
        "steps": STEPS,
        "own_sizes": found.whole,
        "loss": found.loss,
        "sizes": [
            {"tensors": names, "real": list(real), "small": list(small)}
            for (real, small), names in _by_size(found).items()
        ],
        "values": [
            {
                "value": row.what, "name": row.name, "step": row.step + 1, "ranks": len(row.kind.ranks),
                "difference": row.apart, "tolerance": row.allowed, "same": row.same,
                **({} if row.same else {"rank": row.rank, "element": list(row.place)}),
            }
            for row in found.rows
        ],
        "first": None if first is None else {
            "operator": label_of_result(first.node), "ranks": list(first.ranks), "operands": list(first.reads),
            "equals": first.equals, **_where(first.node),
        },
        "odd": None if found.odd is None else {
            "operator": found.odd.node.label, "ranks": list(found.odd.ranks), "said": found.odd.words,
            **_where(found.odd.node),
        },
        "waiting": [
            {"rank": kind.ranks[0], "operator": node.label, **_where(node)} for kind, node in found.stuck
        ],
        "failed": None if found.failed is None else {
            "rank": found.failed[0].ranks[0], "operator": found.failed[1].label, "reason": found.failed[2],
            **_where(found.failed[1]),
        },
        "memory": None if found.memory is None else {
            "arenas": list(found.memory.arenas), "values": found.memory.values,
            "misuses": [
                {"rank": kind.ranks[0], "operator": misuse.node.label, "why": misuse.why, **_where(misuse.node)}
                for kind, misuse in found.memory.misuses
            ],
        },
    }  # fmt: skip
