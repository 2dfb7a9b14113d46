"""Random networks of the operators that PyTorch judges, on one device beside PyTorch."""

import ast
import contextlib
import io
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.run import run_script
from mspc.ir.graph import Graph
from mspc.verify.made_inputs import MadeInput
from mspc.verify.pytorch.against import Against, against_torch
from mspc.verify.verification import STEPS, PlainNetwork, VerifiedProgram, plain_network
from tests.networks import RandomNetwork, usable
from tests.oracle.experts_in_torch import Network
from tests.oracle.test_counterparts import NAMES
from tests.shares import share_of

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
SEED, COUNT = 20261122, share_of(60, 2)


def beside_torch(seed: int) -> Against:
    """The errors found in a network."""
    network = RandomNetwork(seed, [name for name in usable() if name in NAMES])
    graph, doubled = plain_network(network.graph)
    inputs = [p.name for p in graph.parameters if p.kind == "input"]
    made = {name: MadeInput((network.feeds[name],) * STEPS, "") for name in inputs}

    def graph_of(rank: int) -> Graph:
        return graph

    reference = PlainNetwork(graph, doubled, network.feeds)
    return against_torch(VerifiedProgram(graph, graph, 1, reference, network.feeds, lambda _: made, graph_of, graph_of))


def test_networks_equal_pytorch() -> None:
    generator = random.Random(SEED)
    kinds: set[tuple[str, str]] = set()
    for seed in [generator.getrandbits(48) for _ in range(COUNT)]:
        found = beside_torch(seed)
        assert [row for row in found.rows if not row.same] == [], f"seed {seed}"
        kinds |= {(row.kind, row.name) for row in found.rows if row.kind != "gradient"}
    assert len({name for kind, name in kinds if kind == "operator"}) > 40
    assert len({name for kind, name in kinds if kind == "rule"}) > 25


EXPERT_STEPS = 3
SAVED = 'np.savez("begin.npz", text=text, **{p.name: p.asnumpy() for p in network.get_parameters()})\n'


def sizes_of(text: str, name: str) -> dict[str, Any]:
    """A row of the script's table of sizes, without element types."""
    table = re.search(r"^SIZES = (\{.*?^\})", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    return ast.literal_eval(re.sub(r"ms\.\w+", "None", table[1]))[name]


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["small-mixtral", "small-deepseek"])
def test_losses_are_those_of_pytorch(name: str, root: Path, own_folder: Path) -> None:
    text = (root / "benchmarks/networks/experts.py").read_text()
    (own_folder / "net.py").write_text(text.replace("for _ in range(STEPS):\n", f"{SAVED}for _ in range(STEPS):\n"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        run_script(own_folder / "net.py", 8, simulate=True, script_arguments=[name, "sorted", "4", str(EXPERT_STEPS)])
    found = [float(loss) for loss in re.findall(r"loss ([0-9.e+-]+)", printed.getvalue())][::8]
    begin = dict(np.load(own_folder / "begin.npz"))
    words = begin.pop("text")
    assert found == pytest.approx(Network(sizes_of(text, name), begin).train(words, EXPERT_STEPS), rel=2e-6)
