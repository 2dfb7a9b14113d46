"""How fast the text form is written and read: MB/s over a made graph, or over the .ir files named on the command line.

    python benchmarks/text_form.py [FILE.ir ...]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.layout import Layout
from mspc.ir.location import Location
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph, print_module
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.math.arithmetic import Add
from mspc.ops.modules import load_operators

NODES = 3000


def made_graph() -> Graph:
    """A chain of additions with layouts, reasons and source spans, every tenth line of its source another one."""
    graph = Graph("chain")
    tensor = TensorType(FLOAT32, (128, 64))
    layout = Layout.of((2, 4), ((0,), (1,)))
    value = x = Parameter("x", tensor, layout=layout)
    graph.parameters = [x]
    for i in range(NODES):
        node = Node(Add(), [value, x], tensor, "out", f"add{i}", f"Default/network-Net/blocks-{i // 100}")
        node.frames = (Location("net.py", i // 10 + 1, 15, 41, "        out = self.add(x, y)"),)
        node.layout = layout
        node.in_layouts = (layout, layout)
        node.attrs = {"reason": f"line {i}"}
        graph.nodes.append(node)
        value = node
    graph.results = [value]
    return graph


def measure(name: str, text: str) -> None:
    """Print the best of three times of reading and of printing."""
    registry = load_operators()
    reading: list[float] = []
    printing: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        module = parse(text, registry, name)
        middle = time.perf_counter()
        print_module(module)
        reading.append(middle - start)
        printing.append(time.perf_counter() - middle)
    size = len(text) / 1e6
    nodes = sum(len(graph.nodes) for graph in module.graphs)
    print(
        f"{name}: {nodes} nodes, {size:.2f} MB, read {min(reading) * 1e3:.0f} ms ({size / min(reading):.1f} MB/s), "
        f"printed {min(printing) * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    for file in sys.argv[1:]:
        measure(Path(file).name, Path(file).read_text("utf-8"))
    if not sys.argv[1:]:
        measure("made graph", print_graph(made_graph()))
