"""How often a step runs what is inside of loops, choices and calls."""

from __future__ import annotations

from mspc.ir.graph import Graph
from mspc.ir.text.parser import parse
from mspc.ops.control.regions import ONCE, Times, nodes_with_times, times_of
from mspc.ops.op import REGISTRY, load_operators
from tests.ir.regions import LOOP

load_operators()

NOTHING = "<Tuple[], TupleShape()>"


def program(**bodies: str) -> Graph:
    """Graphs whose nodes are all without operands; of each the lines of its nodes but for their types."""
    graphs: list[str] = []
    for name, text in bodies.items():
        heads = [head for head in text.split("; ") if head]
        nodes = [f"  %{i} = {head}\n      : () -> ({NOTHING})\n" for i, head in enumerate(heads)]
        graphs.append(f"subgraph @{name}() {{\n{''.join(nodes)}  Return()\n}}\n")
    return parse("\n".join(graphs), REGISTRY).main


def scan(turns: int, body: str) -> str:
    return f"Scan() {{regions: @{body}}} primitive_attrs: {{carried: 0, turns: {turns}}}"


def call(graph: str) -> str:
    return f"Call() {{regions: @{graph}}}"


def test_turns_multiply_and_calls_add_up() -> None:
    graph = program(net=f"{scan(3, 'outer')}; {call('layer')}", outer=f"{scan(4, 'inner')}; {call('layer')}",
                    inner=f"{call('layer')}; {call('layer')}", layer="")  # fmt: skip
    found = {each.name: times for each, times in times_of(graph).items()}
    assert found == {"net": ONCE, "outer": Times(3), "inner": Times(12), "layer": Times(1 + 3 + 24)}


def test_no_turns_are_none() -> None:
    graph = program(net=scan(0, "body"), body=call("layer"), layer="")
    assert [times.count for times in times_of(graph).values()] == [1, 0, 0]


def test_what_a_condition_decides_runs_so_often_at_most() -> None:
    texts = {node.op.name: times.text for node, times in nodes_with_times(parse(LOOP, REGISTRY).main)}
    assert texts == {
        "While": "", "TupleGetItem": "", "Less": "once a turn", "Add": "once a turn", "Greater": "once a turn",
        "If": "once a turn", "Mul": "at most once a turn",
    }  # fmt: skip


def test_nodes_come_once_behind_the_first_that_runs_them() -> None:
    graph = program(net=f"{call('layer')}; {call('layer')}; {scan(2, 'body')}", layer=scan(5, "body"), body="Nothing()")
    found = [(node.op.name, times.text) for node, times in nodes_with_times(graph)]
    assert found == [("Call", ""), ("Scan", "2 times"), ("Nothing", "12 times"), ("Call", ""), ("Scan", "")]
