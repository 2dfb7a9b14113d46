"""Numbers of thousands of digits and lists of millions of members are refused at once, wherever a user writes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.commands.launch import _cores
from mspc.commands.options import import_options
from mspc.commands.search import meshes_of, micro_batches_of, ranks_of, stages_of
from mspc.engine.capture import parse_input
from mspc.engine.ranks.hosts import check_slots, read_host_file, read_hosts
from mspc.engine.ranks.launcher import LaunchJob
from mspc.engine.variants import VARIABLE, graphs_to_keep
from mspc.ir.diagnostics import MspcError, excerpt
from mspc.ir.text import fragments
from mspc.ir.text.limits import LONGEST_LIST, number_of
from mspc.ir.text.parser import parse
from mspc.mindspore_api.parallel.layout import Layout
from mspc.ops.op import REGISTRY

LONG = "9" * 5000
ZEROS = "0" * 5000
MOST = 5.0
"""Seconds of a core, several times the usual; a quadratic reader takes longer."""


def sizes_of(text: str) -> Any:
    return import_options("", "", [f"x.0={text}"], False).sizes


@pytest.mark.parametrize("read", [ranks_of, meshes_of, stages_of, micro_batches_of, sizes_of, parse_input, read_hosts])
@pytest.mark.parametrize("number", [LONG, f"4,{LONG}", "9" * 30])
def test_a_number_of_an_option_is_refused(read: Callable[[str], Any], number: str) -> None:
    given = {parse_input: f"float32[{number}]", read_hosts: f"a:{number}"}.get(read, number)
    with pytest.raises(MspcError) as refused:
        read(given)
    assert len(str(refused.value)) < 1000


def test_leading_zeros_change_no_number() -> None:
    assert ranks_of(f"{ZEROS}4,8") == (4, 8)
    assert meshes_of(f"{ZEROS}4x2") == ("4x2",)
    assert sizes_of(f"{ZEROS}8") == (("x.0", 8),)
    assert parse_input(f"float32[{ZEROS}16,8]").shape == (16, 8)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), (" 7 ", 7), ("8", 8), ("9", None), ("", None), ("-1", None), ("1.0", None), ("²", None), (LONG, None)],
)
def test_number_of(text: str, number: int | None) -> None:
    assert number_of(text, 8) == number


def test_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, LONG)
    with pytest.raises(MspcError, match="must be an integer from 1"):
        graphs_to_keep()


def test_many_hosts_take_linear_time(tmp_path: Path) -> None:
    count = 20_000
    (tmp_path / "hosts").write_text("".join(f"host{i} slots=1\n" for i in range(count)))
    begin = time.process_time()
    hosts = read_host_file(tmp_path / "hosts")
    assert hosts == read_hosts(",".join(f"host{i}:1" for i in range(count)))
    job = LaunchJob(("work",), count, tmp_path, tuple(hosts), "worker_{rank}_{local_rank}.log")
    assert [job.log(rank).name for rank in range(count)] == [f"worker_{rank}_0.log" for rank in range(count)]
    with pytest.raises(MspcError) as refused:
        check_slots(hosts, count + 1)
    assert len(str(refused.value)) < 1000
    assert time.process_time() - begin < MOST


def test_lists_of_cores_are_bounded() -> None:
    with pytest.raises(MspcError, match="--bind_core"):
        _cores(f'{{"0": {["0-65535"] * 1000}}}', 1)


SOURCE = """subgraph @net() {{
  %0(total) = Unknown(%para1_x) primitive_attrs: {{group: "g", op: "sum", {attributes}rank_list: {ranks}}}
      : ({types}) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}}
"""


@pytest.mark.parametrize(
    ("ranks", "attributes", "types", "message"),
    [
        ("0:100000000:1", "", "", "is no list start:stop:step"),
        (f"0:{LONG}:1", "", "", "unexpected"),
        (f"({', '.join(['0:10000:1'] * 200)})", "", "", "members have more than"),
        ("(0, 1)", ", ".join(f"a{i}: {i}:{i + 1000}:1" for i in range(40)) + ", ", "", "of more than 20000"),
        ("(0, 1)", "", "<Tensor[Float32], (4)>*100000000", "more than 1048576 types"),
        ("(0, 1)", "", ", ".join(["<Tensor[Float32], (4)>*1048576"] * 200), "more than 1048576 types"),
        ("(0, 1)", "", f"<Tensor[Float32], (4)>*{LONG}", "more than"),
        ("(0, 1)", "", f"<Tensor[Float32], ({', '.join(['9' * 18] * 200)})>", "than any memory holds"),
    ],
)
def test_a_text_of_a_graph(
    ranks: str, attributes: str, types: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fragments, "MOST_LISTED", 20_000)
    header = "#IR entry      : @net\n#Total params  : 1\n\n%para1_x: <Tensor[Float32], (4)>\n\n"
    text = header + SOURCE.format(ranks=ranks, attributes=attributes, types=types or "<Tensor[Float32], (4)>")
    begin = time.process_time()
    with pytest.raises(MspcError, match=message):
        parse(text, REGISTRY)
    assert time.process_time() - begin < MOST


def test_lists_of_a_file_are_counted_anew_for_every_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "MOST_LISTED", 20_000)
    header = "#IR entry      : @net\n#Total params  : 1\n\n%para1_x: <Tensor[Float32], (4)>\n\n"
    body = SOURCE.format(ranks="(0, 1)", attributes="a: 0:15000:1, ", types="<Tensor[Float32], (4)>")
    for number in range(3):
        assert parse(header + body.replace("0:15000", f"{number}:{number + 15000}"), REGISTRY).graphs


def test_an_error_at_the_end_of_a_long_line() -> None:
    assert excerpt("x" * 5000, 5001, 5002)[1].endswith("^")


class Wrong(nn.Cell):
    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.change = change

    def construct(self, x: Any) -> Any:
        return self.change(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: ops.reshape(x, (10**5000, -1)),
        lambda x: ops.tile(x, (1,) * (LONGEST_LIST + 1)),
        lambda x: x * 10**5000,
        lambda x: [x + i for i in range(10**30)],
        lambda x: [x + i for i in range(10**8)],
    ],
)
def test_a_number_in_a_network(change: Callable[[Any], Any]) -> None:
    with pytest.raises(MspcError) as refused:
        Wrong(change)(Tensor(np.ones((4, 4)), ms.float32))
    assert len(refused.value.message) < 1000


@pytest.mark.parametrize(
    "make",
    [
        lambda: ops.MatMul().shard(((10**5000, 1), (1, 1))),
        lambda: ops.ReLU().shard(((1,) * 100_000,)),
        lambda: Layout((10**8, 2), ("a", "b")),
        lambda: Layout((1,) * 100_000, tuple(map(str, range(100_000)))),
    ],
)
def test_a_strategy(make: Callable[[], Any]) -> None:
    with pytest.raises(MspcError) as refused:
        make()
    assert len(refused.value.message) < 1000
