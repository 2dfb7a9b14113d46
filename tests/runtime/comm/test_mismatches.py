"""Ranks whose graphs do not fit together are refused before the first step; ranks that run graphs in another order, at
the first step that does not fit."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.runtime.comm.agreement import agree_on_collectives
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.faults.record import StoppedByOther
from tests.graphs import FLOAT32, FLOAT64, Graph, MspcError, Node, Parameter, TensorType
from tests.operators import Barrier, Receive, Scan, Send
from tests.runtime.comm.mismatches import LARGE, cases, refused, run
from tests.runtime.region_graphs import graph, run_graphs
from tests.serving import HANG, SERVED, run_process
from tests.shares import is_taken

ALL = (0, 1, 2, 3)
T = TensorType


def graph_of(*calls: tuple[Any, TensorType]) -> Graph:
    """A graph whose nodes are the given operators on inputs of the given types."""
    made = Graph("net")
    for number, (op, type) in enumerate(calls):
        x = Parameter(f"x{number}", type, "input")
        made.parameters.append(x)
        made.nodes.append(Node(op, [x], op.infer(type)))
    return made


def said(graphs: list[Graph]) -> str:
    """The message of the rank that reports; the others must leave it to speak."""

    def main(comm: LocalComm) -> str:
        try:
            agree_on_collectives(comm, graphs[comm.rank])
        except StoppedByOther:
            return "quiet"
        except MspcError as error:
            return error.message
        return ""

    found = World(len(graphs)).run(main)
    spoken = [text for text in found if text not in ("", "quiet")]
    assert len(spoken) < 2
    assert not spoken or found.count("quiet") == len(graphs) - 1
    return spoken[0] if spoken else ""


ROWS = T(FLOAT32, (8, 4))
CALLS = {
    "AllReduce{op: sum}": AllReduce(rank_list=ALL),
    "AllReduce{op: max}": AllReduce("max", rank_list=ALL),
    "AllGather{axis: 0}": AllGather(rank_list=ALL),
    "AllGather{axis: 1}": AllGather(axis=1, rank_list=ALL),
    "ReduceScatter{op: sum, axis: 0}": ReduceScatter(rank_list=ALL),
    "AlltoAll{split_count: 4, split_dim: 0, concat_dim: 0}": AlltoAll(4, 0, 0, rank_list=ALL),
    "Broadcast{root_rank: 0}": Broadcast(0, rank_list=ALL),
    "Broadcast{root_rank: 1}": Broadcast(1, rank_list=ALL),
    "Barrier{}": Barrier(rank_list=ALL),
}
PAIRS = [(one, other) for one in CALLS for other in CALLS if one != other]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_every_pair_of_collectives(one: str, other: str) -> None:
    graphs = [graph_of((CALLS[other if rank == 2 else one], ROWS)) for rank in ALL]
    of = "of <Tensor[Float32], (8, 4)>"
    assert said(graphs) == (
        "the ranks' graphs do not fit together: as number 1 of the collectives of ranks 0-3, "
        f"rank 0 has {one} {of} and rank 2 {other} {of}"
    )


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("type", [T(FLOAT32, (12, 4)), T(FLOAT32, (4, 8)), T(FLOAT64, (8, 4))])
def test_every_collective_with_another_type(call: str, type: TensorType) -> None:
    graphs = [graph_of((CALLS[call], type if rank == 3 else ROWS)) for rank in ALL]
    assert said(graphs).endswith(f"rank 0 has {call} of <Tensor[Float32], (8, 4)> and rank 3 {call} of {type}")


@pytest.mark.parametrize("call", CALLS)
def test_graphs_that_fit(call: str) -> None:
    assert said([graph_of((CALLS[call], ROWS)) for _ in ALL]) == ""


def test_one_more_call_and_other_groups() -> None:
    both = CALLS["AllReduce{op: sum}"]
    pair = AllReduce(rank_list=(0, 1))
    more = [graph_of((both, ROWS), (both, ROWS)) if rank == 1 else graph_of((both, ROWS)) for rank in ALL]
    assert "as number 2 of the collectives of ranks 0-3, rank 0 has nothing more and rank 1 AllReduce" in said(more)
    apart = [graph_of((pair if rank == 0 else both, ROWS)) for rank in ALL]
    assert "of ranks 0-1, rank 0 has AllReduce{op: sum}" in said(apart) or "rank 0 has nothing more" in said(apart)
    turned = [graph_of((AllGather(rank_list=(1, 0) if rank else (0, 1)), ROWS)) for rank in (0, 1)]
    assert "do not fit together" in said(turned)


def test_collectives_inside_of_loops() -> None:
    def looped(turns: int) -> Graph:
        body = graph("scan_1_body", [ROWS], lambda b, x: [b.emit(CALLS["AllReduce{op: sum}"], x)])
        return graph("net", [ROWS], lambda b, x: run_graphs(b, Scan(turns=turns, carried=1), [x], body))

    assert said([looped(3) for _ in ALL]) == ""
    wanted = "rank 0 has AllReduce{op: sum} of <Tensor[Float32], (8, 4)> in the body of Scan of 3 turns and rank 2 "
    other = said([looped(4 if rank == 2 else 3) for rank in ALL])
    assert other.endswith(f"{wanted}AllReduce{{op: sum}} of <Tensor[Float32], (8, 4)> in the body of Scan of 4 turns")
    plain = said([graph_of((CALLS["AllReduce{op: sum}"], ROWS)) if rank == 2 else looped(3) for rank in ALL])
    assert plain.endswith(f"{wanted}AllReduce{{op: sum}} of <Tensor[Float32], (8, 4)>")


def test_a_group_with_a_rank_that_is_not_there() -> None:
    graphs = [graph_of((AllReduce(rank_list=(0, 7)), ROWS)) for _ in (0, 1)]
    with pytest.raises(MspcError, match="a collective names rank 7; the ranks are 0 to 1"):
        World(2).run(lambda comm: agree_on_collectives(comm, graphs[comm.rank]))


def test_messages_between_two_ranks() -> None:
    def pair(sent: TensorType, heard: TensorType, tag: int = 0) -> list[Graph]:
        receive = graph_of()
        receive.nodes.append(Node(Receive(tag, 0, heard.shape, heard.dtype), [], heard))
        return [graph_of((Send(0, 1), sent)), receive]

    assert said(pair(ROWS, ROWS)) == ""
    assert said(pair(ROWS, T(FLOAT32, (4, 8)))) == (
        "the ranks' graphs do not fit together: as number 1 of messages from rank 0 to 1 under tag 0, rank 0 has "
        "<Tensor[Float32], (8, 4)> and rank 1 <Tensor[Float32], (4, 8)>"
    )
    assert "under tag 0, rank 0 has <Tensor[Float32], (8, 4)> and rank 1 nothing more" in said(pair(ROWS, ROWS, 1))


def test_exchanges() -> None:
    def ring(shape: tuple[int, ...]) -> list[Graph]:
        graphs: list[Graph] = []
        for rank in range(3):
            heard = shape if rank == 1 else ROWS.shape
            op = NeighborExchange(((rank + 1) % 3,), ((rank + 2) % 3,), (heard,), rank_list=(0, 1, 2))
            graphs.append(graph_of((op, ROWS)))
        return graphs

    assert said(ring((8, 4))) == ""
    assert "of messages from rank 0 to 1, rank 0 has <Tensor[Float32], (8, 4)> and rank 1" in said(ring((8, 5)))


DAILY = [case for case in cases() if case[3:] == (LARGE, "order") or "+pair" in case[0]]


@pytest.mark.parametrize("case", cases() if is_taken(1) else DAILY, ids=" | ".join)
def test_mismatches_under_mpirun(case: tuple[str, ...], tmp_path: Path) -> None:
    """All of them under `--thorough`."""
    outcome = run(case, tmp_path)
    assert refused(*outcome), outcome
    assert case[4] != "order" or "which waits elsewhere" in outcome[2]


def test_an_edited_graph_under_mpirun(tmp_path: Path) -> None:
    quick = Path(__file__).parents[3] / "samples" / "quickstart" / "net.py"
    folder = tmp_path / "out"
    subprocess.run([*SERVED, "compile", str(quick), "--ranks", "8", "--out", str(folder)], check=True, timeout=HANG)
    name = json.loads((folder / "program.json").read_text())["execute"]["2"]
    text = (folder / name).read_text()
    assert "AllReduce" in text
    before, _, after = text.partition("op: \"sum\"")
    assert after, text
    (folder / name).write_text(f'{before}op: "max"{after}')
    line = [find_mpirun(), "-n", "8", "--oversubscribe", "--bind-to", "none", *SERVED, "run", str(folder)]
    line.append("--synthetic")
    done = run_process(*line, env=mpirun_environment(), status=2)
    assert "the ranks' graphs do not fit together: as number " in done.stderr
    shutil.rmtree(folder)
