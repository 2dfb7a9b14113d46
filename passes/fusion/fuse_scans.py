"""Compute operands of scans inside of the scans instead of storing them.

Input:  `%1 = FusedElementwise(%x, %y) {body: ("Cast(x0, dst_type=Float32)", "Mul(t0, x1)")}`, `%2 = CumSum(%1)`
Output: `%2 = FusedScan(%x, %y) {body: ("Cast(x0, dst_type=Float32)", "Mul(t0, x1)", "CumSum(t1, axis=1)")}`

A value is computed in all scans that read it, if nothing else reads it and fewer bytes move than before. Scans along
the last dimension load packs of stored elements, and stay as they are.
"""

from __future__ import annotations

import math
from typing import cast

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import Graph, Node, Value
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.fused.body import by_element, line_of, moves_elements, reshapes
from mspc.ops.fused.elementwise import FusedElementwise
from mspc.ops.fused.scans import FusedScan
from mspc.ops.math.scans import ScanOp
from mspc.ops.op import Op
from mspc.passes.base import Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.fusion.fusion_groups import MAX_LINES, MAX_OPERANDS, NodeLines
from mspc.passes.fusion.keep_for_gradients import drop_unread_results, lines_for
from mspc.passes.fusion.rewriter import parts_of


class FuseScans(Pass):
    def run(self, graph: Graph) -> bool:
        scans = {
            node: NodeLines([(cast(Op, node.op), tuple(node.inputs))], (0,))
            for node in graph.nodes if _takes_lines(node)
        }  # fmt: skip
        if not scans:
            return False
        users, updates, returned = graph.users(), Updates(graph), set(graph.results)
        position = {node: number for number, node in enumerate(graph.nodes)}
        readers: dict[Value, list[Node]] = {}
        for scan, kernel in scans.items():
            for value in kernel.operands:
                readers.setdefault(value, []).append(scan)
        parts: dict[Node, list[str]] = {}
        gone, waiting = set[Value](), True
        while waiting:  # operands of lines may be those of a scan by now
            waiting = False
            for node in reversed(graph.nodes):
                others = any(user not in gone and user not in scans for user, _ in users.get(node, ()))
                if node not in readers or others or node in returned or (lines := _lines_of(node)) is None:
                    continue
                made = {scan: scans[scan].with_lines_for({node: ()}, lines) for scan in readers[node]}
                if not _saves(node, lines, scans, made) or any(
                    not _is_kernel(kernel) or updates.between(list(lines.operands), position[node], position[scan])
                    for scan, kernel in made.items()
                ):
                    continue
                waiting, maker = True, node.inputs[0]
                gone.add(node)
                if isinstance(node.op, TupleGetItem) and all(user in gone for user, _ in users[maker]):
                    gone.add(maker)
                for scan in readers.pop(node):
                    for value in made[scan].operands:
                        if value not in scans[scan].operands:
                            readers.setdefault(value, []).append(scan)
                    parts[scan] = [*parts_of(node), *parts.get(scan, parts_of(scan))]
                scans.update(made)
        for scan, labels in parts.items():
            kernel = scans[scan]
            scan.attrs["fused"] = tuple(dict.fromkeys(labels))
            scan.op = FusedScan(tuple(line_of(step.op, step.operands) for step in kernel.steps()))
            scan.inputs = list(kernel.operands)
        if parts:
            drop_unread_results(graph)
            remove_dead(graph)
        return bool(parts)


def _takes_lines(node: Node) -> bool:
    """Whether a node is a scan whose lines are neighbours in memory."""
    if not isinstance(node.op, ScanOp):
        return False
    shape = node.inputs[0].shape
    return math.prod(shape) > 0 and math.prod(shape[node.op.slices(shape).axis + 1 :]) > 1


def _lines_of(node: Node) -> NodeLines | None:
    """Return the lines that compute a value, or None if they do not work element by element."""
    maker = node.inputs[0] if isinstance(node.op, TupleGetItem) else node
    fused = isinstance(maker, Node) and isinstance(maker.op, FusedElementwise)
    if not isinstance(maker, Node) or not (fused or (maker is node and by_element(node.op))):
        return None
    lines = lines_for(maker, [node])
    single = all((by_element(op) or reshapes(op) or moves_elements(op)) and not op.draws for op, _ in lines.lines)
    return lines if single else None


def _is_kernel(kernel: NodeLines) -> bool:
    """Whether there is room for the lines of a scan, and a kernel can compute them element by element."""
    *lines, (_, sources) = kernel.lines
    ends = dict.fromkeys(source[1] for source in sources if not isinstance(source, Value))
    expanded = NodeLines(lines, tuple(ends)).expanded
    few = len(lines) < MAX_LINES and len(kernel.operands) <= MAX_OPERANDS
    return few and expanded is not None and not expanded.space.columns


def _saves(node: Node, lines: NodeLines, scans: dict[Node, NodeLines], made: dict[Node, NodeLines]) -> bool:
    """Whether fewer bytes move if scans compute a value instead of reading it."""
    more = [v for scan, kernel in made.items() for v in kernel.operands if v not in scans[scan].operands]
    alone = () if isinstance(node.op, TupleGetItem) else lines.operands
    before = node.tensor_type.nbytes * (1 + len(made)) + sum(v.tensor_type.nbytes for v in alone)
    return sum(v.tensor_type.nbytes for v in more) < before
