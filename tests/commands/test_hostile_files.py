"""A path that is no file, or a file that asks for too much, is refused at once: nothing waits, nothing is filled."""

from __future__ import annotations

import io
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.opt import optimize
from mspc.commands.run import run_directory
from mspc.engine.script import read_script
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node

NETWORK = """
import numpy as np
from mindspore import nn, ops, Parameter, Tensor

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, 4), np.float32)), "w")
        self.matmul = ops.MatMul().shard(((2, 1), (1, 1)))

    def construct(self, x):
        return ops.tanh(self.matmul(x, self.w))
"""
INPUT = ("float32[8,4]",)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A forward network for 2 ranks, all dumps."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "net.py").write_text(NETWORK)
    options = CompileOptions(ranks=2, level=2, out=folder / "out", inputs=INPUT, json=folder / "table.json")
    compile_target(f"{folder / 'net.py'}:Net", options)
    return folder / "out"


@pytest.fixture
def copy(program: Path, tmp_path: Path) -> Path:
    """The same program, to be damaged."""
    shutil.copytree(program, tmp_path / "out")
    return tmp_path / "out"


def dump(folder: Path, name: str) -> Path:
    (found,) = (folder / "rank_0").glob(f"*{name}*.ir")
    return found


def refusal(action: Callable[[], Any]) -> str:
    with pytest.raises(MspcError) as raised:
        action()
    assert raised.value.exit_status == 2
    return raised.value.message


def runs(folder: Path, data: Path | None = None) -> None:
    run_directory(folder, data=data, synthetic=data is None, simulate=True)


# Paths that are no files -------------------------------------------------------------------------------


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name may have a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


KINDS = [
    ("{} is a FIFO, not a file", make_fifo),
    ("{} is a socket, not a file", make_socket),
    ("cannot read {}: Is a directory", Path.mkdir),
]


@pytest.mark.parametrize(("message", "make"), KINDS)
def test_opt_reads_files_only(tmp_path: Path, message: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / "graph.ir"
    make(path)
    assert refusal(lambda: optimize(path, "")) == message.format(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_opt_reads_no_device(path: str) -> None:
    assert refusal(lambda: optimize(Path(path), "")) == f"{path} is a device, not a file"


@pytest.mark.parametrize(("message", "make"), KINDS)
@pytest.mark.parametrize("name", ["program.json", "weights.safetensors", "data.npz", "execute"])
def test_run_reads_files_only(copy: Path, message: str, make: Callable[[Path], None], name: str) -> None:
    path = dump(copy, "execute") if name == "execute" else copy / name
    path.unlink(missing_ok=True)
    make(path)
    data = path if name == "data.npz" else None
    assert refusal(lambda: runs(copy, data)) == message.format(path)


@pytest.mark.parametrize(("message", "make"), KINDS)
def test_scripts_are_files(tmp_path: Path, message: str, make: Callable[[Path], None]) -> None:
    path = tmp_path / "net.py"
    make(path)
    assert refusal(lambda: read_script(path)) == message.format(path)


def test_a_text_has_a_size_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "graph.ir"
    path.touch()
    os.truncate(path, 1 << 40)
    message = f"{path} has {1 << 40} bytes; a file of text may have {1 << 28}"
    assert refusal(lambda: optimize(path, "")) == message


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x80abc"])
def test_stdin_that_is_no_text(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert refusal(lambda: optimize(Path("-"), "")) == "stdin is not text"


# Files that ask for too much ---------------------------------------------------------------------------


def test_countless_members_of_a_group(tmp_path: Path) -> None:
    path = tmp_path / "graph.ir"
    path.write_text(
        "#attrs :\nranks : 1\n%para1_w: <Ref[Tensor[Float32]], (8), ref_key=w>  :  has_default\n\nsubgraph @a() {\n"
        '  %0 = GroupedUpdate(%para1_w) primitive_attrs: {update: "AssignAdd()", count: 999999999}\n'
        "      : (<Tensor[Float32], (8)>) -> (<Tensor[Float32], (8)>)\n"
        "  Return(%0)\n      : (<Tensor[Float32], (8)>)\n}\n"
    )
    assert "GroupedUpdate takes 1999999998 tensors, not 1" in refusal(lambda: optimize(path, "execute"))
    assert "count: 999999999" in optimize(path, "")


@pytest.mark.parametrize("ranks", [10**5, 1 << 20])
def test_countless_ranks_of_a_program(copy: Path, ranks: int) -> None:
    content = json.loads((copy / "program.json").read_text())
    content["ranks"] = ranks
    (copy / "program.json").write_text(json.dumps(content))
    listed = ", ".join(map(str, range(2, 18)))
    assert refusal(lambda: runs(copy)) == f"{copy} holds no graph for rank {listed}, ... of {ranks}"


@pytest.mark.parametrize("ranks", [0, -1, True, 100_000_000, 10**30])
def test_a_program_has_ranks(copy: Path, ranks: int) -> None:
    content = json.loads((copy / "program.json").read_text())
    content["ranks"] = ranks
    (copy / "program.json").write_text(json.dumps(content))
    assert refusal(lambda: runs(copy)) == (
        f"{copy / 'program.json'} is damaged: ranks is {ranks}, not a whole number from 1 to 1048576"
    )


@pytest.mark.parametrize("text", ["[" * 100000, '{"a":' * 100000, "9" * 5000, '{"format": 1, "ranks": ' + "9" * 5000])
def test_json_that_no_reader_takes(copy: Path, text: str) -> None:
    (copy / "program.json").write_text(text)
    assert refusal(lambda: runs(copy)).startswith(f"{copy / 'program.json'} is damaged: ")


LARGE = """#attrs :
mode : "stand_alone"
ranks : 2
rank : {rank}
#Total params : 1

%para1_x: <Tensor[Float32], ({rows}, 4)>

subgraph @large() {{
  %0 = Tanh(%para1_x)
      : (<Tensor[Float32], ({rows}, 4)>) -> (<Tensor[Float32], ({rows}, 4)>)
  Return(%0)
      : (<Tensor[Float32], ({rows}, 4)>)
}}
"""


@pytest.mark.parametrize(("rows", "size"), [(8 * 10**12, "119209.3"), (8 * 10**16, "1192092895.5")])
def test_a_program_larger_than_the_machine(copy: Path, rows: int, size: str) -> None:
    for rank in (0, 1):
        (path,) = (copy / f"rank_{rank}").glob("*_execute_*.ir")
        path.write_text(LARGE.format(rank=rank, rows=rows))
    message = f"rank_0/{dump(copy, 'execute').name}: inputs and parameters take {size} GiB, input 'x' alone {size}; "
    assert message in refusal(lambda: runs(copy))


def test_an_array_that_memory_does_not_hold(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> Any:
        raise MemoryError("Unable to allocate 1.00 EiB")

    monkeypatch.setattr("mspc.engine.run_program.synthetic_batches", none_left)
    message = "there is no memory for the inputs and parameters of rank 0: Unable to allocate 1.00 EiB"
    assert refusal(lambda: runs(copy)) == message


def test_a_header_of_the_data_that_asks_for_all_memory(copy: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((8, 4), np.float32))
    content = (tmp_path / "data.npz").read_bytes()
    assert b"(8, 4)" in content
    (tmp_path / "data.npz").write_bytes(content.replace(b"(8, 4), }      ", b"(8, 499999999), "[:15]))
    assert refusal(lambda: runs(copy, tmp_path / "data.npz")).startswith(f"cannot read {tmp_path / 'data.npz'}: ")


# Passes on graphs that do not fit ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "passes", "message"),
    [
        ("step_parallel_end", "slice_to_rank", "pass slice_to_rank needs a graph of all ranks; "),
        ("execute", "propagate_sharding", "pass propagate_sharding needs a graph of all ranks; "),
        ("execute", "check_strategies", "pass check_strategies needs a graph of all ranks; "),
        ("execute", "insert_redistribution", "pass insert_redistribution needs a graph of all ranks; "),
        ("execute", "reduce_gradients", "pass reduce_gradients needs a graph of all ranks; "),
        ("07_insert", "slice_to_rank", "pass slice_to_rank needs collectives; Redistribute is still to become some"),
    ],
)
def test_a_pass_names_what_the_graph_lacks(program: Path, stage: str, passes: str, message: str) -> None:
    assert refusal(lambda: optimize(dump(program, stage), passes)).startswith(message)


def test_an_unexpected_failure_names_pass_and_node(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(step: Any, graph: Graph) -> bool:
        node = next(n for n in graph.nodes if n.op.name == "MatMul")
        assert isinstance(node, Node)
        raise KeyError(7)

    monkeypatch.setattr("mspc.passes.cleanup.simplify.Simplify.run", fails)
    path = dump(program, "01_grad")
    message = f"{path}: pass simplify cannot work on this graph at MatMul 'matmul': KeyError: 7"
    assert refusal(lambda: optimize(path, "simplify")) == message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ranks : 2", "ranks : 4", "is of 2 ranks; the header says 4"),
        ("(8, 4)", "(7, 4)", "shards a tensor of shape (7, 4) into slices that are not equal"),
    ],
)
def test_layouts_fit_the_graph(program: Path, tmp_path: Path, old: str, new: str, message: str) -> None:
    text = dump(program, "05_propagate").read_text()
    assert old in text
    (tmp_path / "graph.ir").write_text(text.replace(old, new))
    assert message in refusal(lambda: optimize(tmp_path / "graph.ir", "simplify"))


@pytest.mark.parametrize(
    ("option", "shown"), [("rank=foo", "'foo'"), ("rank=true", "True"), ("rank=" + "9" * 5000, f"'{'9' * 59}...")]
)
def test_options_of_passes_have_their_kind(program: Path, option: str, shown: str) -> None:
    message = f"pass slice_to_rank: option rank takes a whole number, not {shown}"
    assert refusal(lambda: optimize(dump(program, "09_fuse"), f"slice_to_rank{{{option}}}")) == message
