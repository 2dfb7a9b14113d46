"""`mspc compile` as a user runs it: files, names, table, JSON, ranks; the same bytes every time."""

import json
import os
import re
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dumps import counter, dump, dumped, pass_of, stages
from safetensors.numpy import load_file

from mspc.compiler.pipeline import FILE_NAMES, VIEWS
from mspc.ir.files.regular import RULE
from mspc.ops.op import load_operators
from tests.compiled_scripts import CompileOptions, compile_target, run_directory
from tests.errors import error_of, message_of
from tests.graphs import difference, parse, print_graph
from tests.serving import SERVED, run_process, succeed

ALL_STAGES = stages()
MPIRUN = ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

CALLED = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter

{setup}

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((8, 4), np.float32), "w")
        self.matmul = ops.MatMul().shard(((2, 1), (1, 2)))

    def construct(self, x):
        return self.matmul(x, self.w)


net = Net()
out = net(Tensor(np.ones((4, 8)), ms.float32))
"""
SEMI_4 = "ms.set_auto_parallel_context(parallel_mode='semi_auto_parallel', device_num=4, dataset_strategy='full_batch')"


def compile_(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k not in MPIRUN} | environment
    return run_process(*SERVED, "compile", *arguments, cwd=cwd, env=variables)


def ok(*arguments: str, cwd: Path, **environment: str) -> str:
    """The table of a compile that must succeed without a word on stderr."""
    done = compile_(*arguments, cwd=cwd, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def refused(*arguments: str, cwd: Path, **environment: str) -> str:
    """The message of a compile that must fail with status 2."""
    done = compile_(*arguments, cwd=cwd, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    return message_of(done.stderr)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write(folder: Path, text: str, name: str = "net.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture(scope="module")
def quickstart(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """(output folder, table) of the quick start for 8 ranks, all stages."""
    folder = tmp_path_factory.mktemp("quickstart")
    table = ok(str(root / "samples/quickstart/net.py"), "--ranks", "8", "--save-graphs", "--all", cwd=folder)
    return folder / "saved_graph", table


def test_every_rank_has_every_stage(quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    ranks = [f"rank_{rank}" for rank in range(8)]
    assert sorted(p.name for p in folder.iterdir()) == ["program.json", *ranks, "weights.safetensors"]
    for rank in ranks:
        assert dumped(folder / rank) == ALL_STAGES
        assert [counter(dump(folder / rank, name)) for name in ALL_STAGES] == list(range(len(ALL_STAGES)))


def test_nothing_else_is_left_in_the_folder(quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    assert [p.name for p in folder.parent.iterdir()] == ["saved_graph"]


def test_dumps_name_the_pass_before(quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    first = {pass_of(p): p.read_text().partition("\n")[0] for p in (folder / "rank_3").iterdir()}
    assert first["frontend"] == "# after: frontend, previous: none, changed: yes"
    assert first["grad"] == "# after: grad, previous: frontend, changed: yes"
    names = {file: name for name, file in FILE_NAMES.items()}
    going_on = [names.get(name, name) for name in ALL_STAGES if name not in VIEWS]
    for before, after in pairwise(going_on):
        line = first[FILE_NAMES.get(after, after)]
        assert line.startswith(f"# after: {after}, previous: {before}, changed: "), line


def test_every_dump_reads_back_equal(quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    registry = load_operators()
    for path in (folder / "rank_5").iterdir():
        text = path.read_text()
        module = parse(text, registry, file=path.name, frames=True)
        (graph,) = module.graphs
        assert print_graph(graph) == text.partition("\n")[2], path.name
        again = parse(print_graph(graph), registry, file=path.name, frames=True)
        assert difference(graph, again.graphs[0]) == ""


def test_text_before_slicing_is_the_same_for_all_ranks(quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    sliced = ALL_STAGES.index("step_parallel_end")
    for place, name in enumerate(ALL_STAGES):
        different = len({dump(folder / f"rank_{rank}", name).read_bytes() for rank in range(8)})
        assert different == (8 if place >= sliced else 1), name


def test_program_lists_what_a_run_needs(quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    program = json.loads((folder / "program.json").read_text())
    assert (program["format"], program["ranks"], program["mode"]) == (1, 8, "auto_parallel")
    assert program["training"] is True
    execute = dump(folder / "rank_0", "execute")
    assert program["execute"] == {str(r): f"rank_{r}/{execute.name}" for r in range(8)}
    shapes = {entry["name"]: entry["shape"] for entry in program["inputs"]}
    assert list(shapes.values()) == [[16, 32], [16, 16]]
    assert f'compile_id : "{program["compile_id"]}"' in execute.read_text()
    initial = {entry["name"]: (entry["shape"], entry.get("initial")) for entry in program["parameters"]}
    assert initial["w"] == ([32, 16], {"initializer": "Normal", "sigma": 0.01, "mean": 0.0, "seed": 0, "counter": 0})
    assert initial["moments.w"] == ([32, 16], {"initializer": "Constant", "value": 0})
    weights = load_file(folder / "weights.safetensors")
    assert weights.keys() == {name for name, (_, made) in initial.items() if made is None}
    assert weights["learning_rate"] == np.float32(0.2)


def test_table_says_where_everything_comes_from(quickstart: tuple[Path, str]) -> None:
    _, table = quickstart
    assert re.search(r"^MatMul +matmul +\(2, 4\) \(4, 1\) +shard\(\) +net\.py:\d+$", table, re.MULTILINE)
    assert re.search(r"^w +parameter +Float32 +\(32, 16\) +\(8, 16\) +512 B$", table, re.MULTILINE)
    scatter = re.search(r"^ReduceScatter +0-1-2-3 +384 B +net\.py:\d+\n    (.*)$", table, re.MULTILINE)
    assert scatter is not None
    assert "the result of MatMul 'matmul' is sharded (2, 1) on mesh (2, 4) in 4 partial sums" in scatter[1]
    assert max(map(len, table.splitlines()[1:-1])) <= 100
    assert "2.4 KiB sent per step" in table


def test_compile_is_byte_identical(root: Path, tmp_path: Path, quickstart: tuple[Path, str]) -> None:
    """Another hash seed, another folder, the script elsewhere."""
    other = tmp_path / "else where"
    other.mkdir()
    script = shutil.copy(root / "samples/quickstart/net.py", other)
    for seed in ("0", "1"):
        out = tmp_path / f"out{seed}"
        table = ok(
            str(script), "--ranks", "8", "--save-graphs", "--all", "--out", str(out), cwd=other, PYTHONHASHSEED=seed
        )
        assert files(out) == files(quickstart[0])
        assert table.partition("\n")[2] == quickstart[1].partition("\n")[2]


def test_one_rank_alone_has_the_same_bytes(root: Path, tmp_path: Path, quickstart: tuple[Path, str]) -> None:
    folder, _ = quickstart
    ok(str(root / "samples/quickstart/net.py"), "--ranks", "8", "--save-graphs", "--rank", "5", cwd=tmp_path)
    alone, together = files(tmp_path / "saved_graph"), files(folder)
    assert {name for name in alone if name.startswith("rank_")} == {n for n in together if n.startswith("rank_5/")}
    assert all(alone[name] == together[name] for name in alone if name != "program.json")
    assert list(json.loads(alone["program.json"])["execute"]) == ["5"]


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        ([], ["execute"]),
        (["--level", "1"], ["frontend", "step_parallel_begin", "step_parallel_end", "execute"]),
        (["--level", "2"], ALL_STAGES),
        (["--level", "3"], ALL_STAGES),
    ],
)
def test_level_decides_what_is_written(tmp_path: Path, flags: list[str], names: list[str]) -> None:
    setup = SEMI_4 if flags else ""
    script = write(tmp_path, CALLED.format(setup=setup))
    ok(str(script), *flags, "--rank", "0", cwd=tmp_path)
    folder = tmp_path / "saved_graph/rank_0"
    assert dumped(folder) == names
    assert [counter(dump(folder, name)) for name in names] == list(range(len(names)))


def test_script_can_ask_for_graphs_and_place(tmp_path: Path) -> None:
    setup = SEMI_4 + '\nms.set_context(save_graphs=True, save_graphs_path="dumps/here")'
    script = write(tmp_path, CALLED.format(setup=setup))
    ok(str(script), cwd=tmp_path)
    assert dumped(tmp_path / "dumps/here/rank_0") == ALL_STAGES
    ok(str(script), "--out", "there", cwd=tmp_path)
    assert (tmp_path / "there/program.json").is_file()


def test_table_as_json(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=SEMI_4))
    text = ok(str(script), "--json", "-", cwd=tmp_path)
    ok(str(script), "--json", "table.json", cwd=tmp_path)
    assert text == (tmp_path / "table.json").read_text()
    table: dict[str, Any] = json.loads(text)
    assert (table["ranks"], table["rank"], table["mode"]) == (4, 0, "semi_auto_parallel")
    (matmul,) = table["operators"]
    assert matmul["strategy"] == [[2, 1], [1, 2]]
    assert matmul["origin"] == "shard()"
    w = next(p for p in table["parameters"] if p["name"] == "w")
    assert (w["shape"], w["slice"], w["bytes"]) == ([8, 4], [8, 2], 64)
    assert sum(c["bytes"] for c in table["collectives"]) == table["totals"]["bytes_sent"]
    assert all(c["reason"] for c in table["collectives"])
    (sliced,) = table["slices"]
    assert (sliced["shape"], sliced["slice"]) == ([4, 8], [2, 8])
    assert sliced["reason"].startswith("input x is replicated")
    memory = table["memory"]
    assert (memory["weights"], memory["inputs"], memory["gradients"]) == (64, 128, 0)
    assert memory["step"] >= memory["lower_bound"] == memory["activations"]
    stored = sum(memory[kind] for kind in ("weights", "states", "inputs", "constants"))
    assert table["totals"]["peak_bytes"] == stored + memory["step"]


def test_ranks_flag_replaces_device_num(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=SEMI_4))
    assert ok(str(script), cwd=tmp_path).startswith("semi_auto_parallel, 4 ranks, ")
    assert ok(str(script), "--ranks", "8", cwd=tmp_path).startswith("semi_auto_parallel, 8 ranks, ")


def test_script_without_mode_shards_nothing(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=""))
    done = compile_(str(script), "--ranks", "2", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("stand_alone, 2 ranks, ")
    assert done.stdout.endswith("note: 1 strategies set with shard() do not count in mode stand_alone\n")


def test_named_network_needs_no_launch(tmp_path: Path) -> None:
    text = CALLED.format(setup="").partition("net = Net()")[0]
    write(tmp_path, text)
    table = ok("net.py:Net()", "--input", "float32[4,8]", "--ranks", "4", cwd=tmp_path)
    assert table.startswith("semi_auto_parallel, 4 ranks, ")
    assert re.search(r"^x +input +Float32 +\(4, 8\) +\(4, 8\) +128 B$", table, re.MULTILINE)


def test_named_network_may_be_in_a_package(tmp_path: Path) -> None:
    (tmp_path / "models" / "parts").mkdir(parents=True)
    (tmp_path / "models" / "__init__.py").write_text("from models.parts.net import Net\nWIDTH = 16\n")
    (tmp_path / "models" / "parts" / "__init__.py").write_text("")
    text = CALLED.format(setup="").partition("net = Net()")[0]
    write(tmp_path / "models" / "parts", f"from .. import parts\nfrom .other import DEPTH\n{text}")
    (tmp_path / "models" / "parts" / "other.py").write_text("DEPTH = 2\n")
    table = ok("models/parts/net.py:Net()", "--input", "float32[4,8]", "--ranks", "4", cwd=tmp_path)
    assert table.startswith("semi_auto_parallel, 4 ranks, ")


def test_later_launch_is_named(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=SEMI_4) + "second = net(Tensor(np.ones((8, 8)), ms.float32))\n")
    line = len(script.read_text().splitlines())
    assert ok(str(script), cwd=tmp_path).endswith(
        f"note: {script}:{line}:10: not compiled, since it is a later launch: "
        "second = net(Tensor(np.ones((8, 8)), ms.float32))\n"
    )


def test_script_stops_at_its_launch(tmp_path: Path) -> None:
    text = CALLED.format(setup=SEMI_4).replace("out = net(", "print('before')\nout = net(") + "print('went on')\n"
    table = ok(str(write(tmp_path, text)), cwd=tmp_path)
    assert table.startswith("before\nsemi_auto_parallel")
    assert "went on" not in table


def test_handlers_of_the_script_do_not_hide_the_launch(tmp_path: Path) -> None:
    launch = textwrap.dedent(
        """
        try:
            out = net(Tensor(np.ones((4, 8)), ms.float32))
        except Exception:
            print("wrong")
        finally:
            raise ValueError("an error on the way out")
        """
    )
    text = CALLED.format(setup=SEMI_4).replace("out = net(Tensor(np.ones((4, 8)), ms.float32))", launch)
    assert ok(str(write(tmp_path, text)), cwd=tmp_path).startswith("semi_auto_parallel, 4 ranks")


def test_arguments_reach_the_script(tmp_path: Path) -> None:
    setup = SEMI_4 + "\nimport sys\nprint(__name__, sys.argv)"
    write(tmp_path, CALLED.format(setup=setup))
    table = ok("net.py", "--ranks", "4", "--", "--lr", "0.1", cwd=tmp_path)
    assert table.startswith("__main__ ['net.py', '--lr', '0.1']\n")


BY_RANK = """
import numpy as np
import mindspore as ms
from mindspore import nn, Tensor
from mindspore.communication import init, get_rank

init()

class Net(nn.Cell):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def construct(self, x):
        return x * self.factor

print("factor", get_rank() % 3)
Net(float(get_rank() % 3) + 1.0)(Tensor(np.ones((2, 2)), ms.float32))
"""


def test_network_that_depends_on_the_rank_is_traced_for_every_rank(tmp_path: Path) -> None:
    script = write(tmp_path, BY_RANK)
    table = ok(str(script), "--ranks", "4", cwd=tmp_path)
    assert table.count("factor") == 1
    assert table.endswith("note: the network depends on get_rank(), so the script was run once for every rank\n")
    texts = [next((tmp_path / f"saved_graph/rank_{rank}").iterdir()).read_text() for rank in range(4)]
    assert [re.findall(r"value=([\d.]+)", text) for text in texts] == [["1.0"], ["2.0"], ["3.0"], ["1.0"]]
    identities = {re.search(r'compile_id : "(\w+)"', text)[1] for text in texts}  # type: ignore[index]
    assert identities == {json.loads((tmp_path / "saved_graph/program.json").read_text())["compile_id"]}
    ok(str(script), "--ranks", "4", "--rank", "2", "--out", "alone", cwd=tmp_path)
    assert next((tmp_path / "alone/rank_2").iterdir()).read_text() == texts[2]


ASKING = """
import os
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor
from mindspore.communication import get_rank, init
from mindspore.train import ModelCheckpoint

init()
open("runs", "a").write("x")
{line}
net = nn.Dense(4, 4, weight_init="ones")
net(Tensor(np.ones((2, 4)), ms.float32))
"""


@pytest.mark.parametrize(
    "line",
    [
        'ModelCheckpoint(directory=f"checkpoints/rank_{get_rank()}")', 'print("rank", get_rank())',
        'print("rank %d" % get_rank(), str(get_rank()), "{}".format(get_rank() + 1))',
        'ModelCheckpoint(directory=os.path.join("checkpoints", str(get_rank())))',
    ],
)  # fmt: skip
def test_a_script_that_asks_for_its_rank_for_a_name_runs_once(tmp_path: Path, line: str) -> None:
    script = write(tmp_path, ASKING.replace("{line}", line))
    assert "the script was run" not in ok(str(script), "--ranks", "4", cwd=tmp_path)
    assert (tmp_path / "runs").read_text() == "x"


@pytest.mark.parametrize(
    "line",
    [
        "rank = get_rank()", 'name = f"rank_{get_rank()}"', "np.random.seed(get_rank())", "print(np.ones(get_rank()))",
        "ModelCheckpoint(directory=chr(get_rank() + 65))", 'os.environ["RANK"] = str(get_rank())',
        "print(get_rank() == 0 and ms.set_seed(1))",
    ],
)  # fmt: skip
def test_a_script_that_may_depend_on_its_rank_runs_as_each_and_is_told(tmp_path: Path, line: str) -> None:
    script = write(tmp_path, ASKING.replace("{line}", line))
    table = ok(str(script), "--ranks", "4", cwd=tmp_path)
    assert (tmp_path / "runs").read_text() == "xxxx"
    where = f"net.py:11:{line.index('get_rank') + 1}"
    assert (
        f"note: the script was run 4 times, once for each of so many ranks, as {where} asks which rank it is ({line}); "
        "their networks are equal"
    ) in " ".join(table.split())


BY_RANK_INSIDE = """
import numpy as np
import mindspore as ms
from mindspore import nn, Tensor
from mindspore.communication import {name}, init

init()

class Net(nn.Cell):
    def construct(self, x):
        return x * float({name}() + 1)

Net()(Tensor(np.ones((2, 2)), ms.float32))
"""


@pytest.mark.parametrize("name", ["get_rank", "get_local_rank"])
@pytest.mark.parametrize("target", [("net.py",), ("net.py:Net", "--input", "float32[2,2]")])
def test_a_rank_that_construct_asks_for_is_each_ranks_own(tmp_path: Path, name: str, target: Sequence[str]) -> None:
    write(tmp_path, BY_RANK_INSIDE.format(name=name))
    table = ok(*target, "--ranks", "3", cwd=tmp_path)
    assert table.endswith("note: the network depends on get_rank(), so the script was run once for every rank\n")
    texts = [next((tmp_path / f"saved_graph/rank_{rank}").iterdir()).read_text() for rank in range(3)]
    assert [re.findall(r"value=([\d.]+)", text) for text in texts] == [["1.0"], ["2.0"], ["3.0"]]
    ok(*target, "--ranks", "3", "--rank", "2", "--out", "alone", cwd=tmp_path)
    assert next((tmp_path / "alone/rank_2").iterdir()).read_text() == texts[2]


def test_earlier_output_survives_a_failure(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=SEMI_4))
    ok(str(script), cwd=tmp_path)
    before = files(tmp_path / "saved_graph")
    write(tmp_path, script.read_text().replace("((2, 1), (1, 2))", "((3, 1), (1, 2))"))
    refused(str(script), cwd=tmp_path)
    assert files(tmp_path / "saved_graph") == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.py", "saved_graph"]


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=SEMI_4))
    assert refused(str(script), "--out", ".", cwd=tmp_path) == (
        "error: . holds files that mspc did not write: net.py\n  note: give another folder, or an empty one\n"
    )


def test_mpirun_decides_the_ranks(tmp_path: Path) -> None:
    script = write(tmp_path, CALLED.format(setup=SEMI_4))
    mpirun = {"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "0"}
    said = refused(str(script), cwd=tmp_path, **mpirun)
    assert said.startswith("net.py:6:1: error: mpirun started 8 ranks, but the script's device_num is 4\n")
    assert said.endswith("  note: start it with mpirun -n 4, or give --ranks 8 to overrule the script\n")
    assert refused(str(script), "--ranks", "4", cwd=tmp_path, **mpirun) == (
        "error: mpirun started 8 ranks, but --ranks is 4\n"
    )
    assert ok(str(script), "--ranks", "8", cwd=tmp_path, **mpirun).startswith("semi_auto_parallel, 8 ranks")
    assert ok(str(script), "--ranks", "8", cwd=tmp_path, **mpirun | {"OMPI_COMM_WORLD_RANK": "1"}) == ""


MISTAKES = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.relu = ops.ReLU().shard(((3, 1),))
        self.tanh = ops.Tanh().shard(((16, 1),))
    def construct(self, x):
        y = self.relu(x)
        z = undefined_name + 1
        return self.tanh(y)
Net()(Tensor(np.ones([16, 16]), ms.float32))
"""


def test_mistakes_of_python_and_of_strategies_come_together(tmp_path: Path) -> None:
    script = write(tmp_path, MISTAKES)
    done = compile_(str(script), cwd=tmp_path)
    assert done.returncode == 2
    assert message_of(done.stderr) == (
        f"{script.name}:13:13: error: name 'undefined_name' is not defined\n"
        "            z = undefined_name + 1\n"
        "                ^^^^^^^^^^^^^^\n"
        f"{script.name}:12:13: error: ReLU 'relu': dimension 0 of input 0 is 16, which 3 does not divide\n"
        "            y = self.relu(x)\n"
        "                ^^^^^^^^^^^^\n"
        "  note: shard it into 1, 2, 4, 8 or 16 slices\n"
        f"{script.name}:14:16: error: Tanh 'tanh': the strategy ((16, 1),) needs 16 ranks, but there are 8\n"
        "            return self.tanh(y)\n"
        "                   ^^^^^^^^^^^^\n"
        "  note: the product of its numbers must divide 8\n"
        "  note: all strategies of the network divide 16 ranks, and multiples of 16\n"
        "3 errors\n"
    )
    assert not (tmp_path / "saved_graph").exists()


SCRIPT = """
import mspc as ms
from mspc import Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE, device_target="{device}")

class Net(nn.Cell):
    def construct(self, x):
        x = ops.sort(x)[0]
        return ops.cholesky(x) + ops.cholesky(x * 2).max()

Net()(ops.ones((4, 4), ms.float32))
"""


@pytest.mark.parametrize("device", ["GPU", "CPU"])
def test_operators_without_kernels_are_named_with_their_lines(tmp_path: Path, device: str) -> None:
    (tmp_path / "net.py").write_text(SCRIPT.format(device=device), encoding="utf-8")
    done = succeed(*SERVED, "compile", "net.py", "--json", "facts.json", cwd=tmp_path)
    text = " ".join(done.stdout.split())
    rows = json.loads((tmp_path / "facts.json").read_text(encoding="utf-8"))["without_kernels"]
    if device == "CPU":
        assert rows == []
        assert "CuPy" not in text
        return
    wanted = "no kernel of mspc's for GPUs, so they run through CuPy, in more launches: Cholesky (2 nodes: net.py:10)"
    assert wanted in text
    assert rows[0] == {"operator": "Cholesky", "nodes": 2, "lines": ["net.py:10"]}
    assert {row["operator"] for row in rows} == {"Cholesky"}


DATA_SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.full((8, 4), 2, np.float32)), "w")

    def construct(self, x):
        return ops.matmul(x, self.w)

Net()(Tensor(np.ones((4, 8), np.float32)))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "net.py").write_text(DATA_SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        compile_target("net.py", CompileOptions(out=Path("out"), json=Path("table.json")))
    return folder


@pytest.fixture
def program(compiled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the compiled folder, in a working folder with another folder beside it."""
    (tmp_path / "work" / "elsewhere").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    shutil.copytree(compiled / "out", "out")
    shutil.copy(compiled / "net.py", "net.py")
    return Path("out")


def data_refused(program: Path, message: str) -> None:
    """Running the program is refused with this message, and writes nothing anywhere."""
    before = sorted(Path.cwd().parent.rglob("*"))
    error = error_of(run_directory, program, synthetic=True, steps=2)
    assert (error.message, error.exit_status) == (message, 2)
    assert sorted(Path.cwd().parent.rglob("*")) == before


def execute(program: Path) -> Path:
    (found,) = (program / "rank_0").glob("*_execute_*.ir")
    return found


def rename_graph(program: Path, name: str) -> None:
    path = program / "program.json"
    content = json.loads(path.read_text())
    content["execute"]["0"] = name
    path.write_text(json.dumps(content))


def absolute(program: Path) -> str:
    return str(execute(program).resolve())


def above(program: Path) -> str:
    shutil.copy(execute(program), "net.ir")
    return "rank_0/../../net.ir"


@pytest.mark.parametrize("name", [absolute, above, lambda _: "/etc/hostname", lambda _: "../net.py"])
def test_a_graph_out_of_the_folder(program: Path, name: Callable[[Path], str]) -> None:
    named = name(program)
    rename_graph(program, named)
    data_refused(program, f"out/program.json names {named!r}, a path out of its folder")


@pytest.mark.parametrize("linked", ["rank_0", "program.json", "weights.safetensors", "graph"])
def test_a_file_behind_a_link(program: Path, linked: str) -> None:
    path = execute(program) if linked == "graph" else program / linked
    shutil.move(path, "elsewhere/moved")
    path.symlink_to(Path("elsewhere/moved").resolve())
    who = "out/program.json" if linked in ("rank_0", "graph") else "the folder"
    shown = execute(program).relative_to(program) if linked == "rank_0" else path.relative_to(program)
    data_refused(program, f"{who} names {str(shown)!r}, which a link leads out of out")


def test_the_rule_is_said(program: Path) -> None:
    rename_graph(program, "/etc/hostname")
    assert error_of(run_directory, program, synthetic=True).notes == (RULE,)
