"""`mspc verify` where every rank trains on its own rows: each is compared with one device on these rows.

The gradients that updates read are combined over the ranks here, by hand, so that the parameters can be compared too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.compiler.driver import Compiled
from mspc.engine.compared import Row, coarsest, compare
from mspc.ir.graph import Graph, Node, Parameter
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.interface import combine
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.observe import observe

Array = Any


def alone_on_own_rows(
    graph: Graph, rows: Sequence[Sequence[Array]], weights: dict[str, Array], mark: str, mean: bool
) -> list[dict[Any, Array]]:
    """What one device computes with every rank's rows: see `observe`.

    graph: of one device. rows: every rank's inputs. mean: updates read the mean of the ranks' gradients, not the sum.
    """
    ranks = tuple(range(len(rows)))

    def main(comm: LocalComm) -> dict[Any, Array]:
        inputs = iter(rows[comm.rank])
        values: dict[Parameter, Array] = {
            p: np.array(next(inputs) if p.kind == "input" else weights[p.name]) for p in graph.parameters
        }

        def combined(gradient: Array) -> Array:
            total = combine(list(comm.all_gather(np.asarray(gradient)[None], ranks, 0)), "sum")
            return (total * total.dtype.type(1.0 / len(ranks))) if mean else total

        return observe(graph, NumPyBackend(comm), values, mark, combined)

    return World(len(rows)).run(main)


def compare_own_rows(
    one: Compiled, many: Compiled, expected: list[dict[Any, Array]], found: list[dict[Any, Array]], mark: str
) -> tuple[list[Row], Node | None]:
    """Rows for results and parameters, and the first operator whose value differs on some rank.

    Parameters that agree are shown where gradients are means, as one device has them on the whole batch.
    """
    least = coarsest(one.graph)

    def worst(kind: str, name: str, key: Any) -> Row | None:
        pairs = [(a[key], b[key]) for a, b in zip(expected, found, strict=True) if key in a and key in b]
        rows = [compare(kind, name, wanted, mine, least) for wanted, mine in pairs]
        return max(rows, key=lambda r: (not r.same, r.difference), default=None)

    rows = [worst("output", str(i), ("result", i)) for i in range(len(many.graph.results))]
    first: Node | None = None
    for node in one.graph.nodes:
        compared = worst("operator", node.label, node.attrs.get(mark))
        if compared is not None and not compared.same:
            first = node
            rows.append(compared)
            break
    for parameter in one.graph.parameters:
        compared = worst("parameter", parameter.name, parameter.name) if parameter.kind == "parameter" else None
        if compared is not None and (many.config.gradients_mean or not compared.same):
            rows.append(compared)
    return [r for r in rows if r is not None], first
