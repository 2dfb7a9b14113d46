"""`mspc opt`, `demo`, `passes` and `plan`; the modules that a start loads, and settings that change nothing."""

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from mspc.commands.opt import optimize
from mspc.commands.options import DeviceOption
from mspc.commands.plan import ConfigurationRequest, plan
from mspc.commands.verbs.passes import MODES
from mspc.commands.verbs.passes import passes as list_passes
from mspc.compiler.pipeline import STEPS, idle_passes, numbered, rank_passes, shared_passes
from mspc.passes.base import pass_names
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.errors import message_of
from tests.graphs import REGISTRY, Graph, MspcError, check_graph, parse
from tests.ir.regions import LOOP, PROGRAM
from tests.ir.test_mindspore_dumps import LOOP_DUMP
from tests.serving import SERVED, run_process, succeed

NEED_LAYOUTS = frozenset({"insert_redistribution", "slice_to_rank", "search_sharding"})
"""Passes that other passes must have gone ahead of."""


def read(text: str) -> Graph:
    graph = parse(text, REGISTRY).main
    graph.verify()
    check_graph(graph)
    return graph


@pytest.mark.parametrize("text", [LOOP, PROGRAM], ids=["loop", "program"])
def test_every_pass_leaves_a_sound_text(text: str, tmp_path: Path) -> None:
    file = tmp_path / "net.ir"
    file.write_text(text)
    assert optimize(file, "") == text
    for name in [name for name in pass_names() if name not in NEED_LAYOUTS]:
        read(optimize(file, name))


def test_what_nobody_reads_goes_out_of_a_loop(tmp_path: Path) -> None:
    """The numbers of turns of `while`, which the body counts, stay; a constant condition goes."""
    file = tmp_path / "net.ir"
    more = "%4 = Neg(%3)\n      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)\n  Return((%0, %3))"
    file.write_text(LOOP.replace("Return((%0, %3))", more))
    body = read(optimize(file, "simplify")).graphs()[2]
    assert [node.op.name for node in body.nodes] == ["Add", "Greater", "If", "TupleGetItem"]


def test_passes_do_not_run_on_graphs_of_mindspore(tmp_path: Path) -> None:
    file = tmp_path / "dump.ir"
    file.write_text(LOOP_DUMP)
    with pytest.raises(MspcError, match="holds 3 graphs of mindspore; passes run on graphs of mspc"):
        optimize(file, "simplify")
    assert "call(@43_3_" in optimize(file, "") or 'call(@"43_3_' in optimize(file, "")


def demo(cwd: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_process(*SERVED, "demo", *arguments, cwd=cwd)


def test_it_carries_out_its_own_readme(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    done = demo(tmp_path, "project")
    assert (done.returncode, done.stderr) == (0, "")
    readme = (tmp_path / "project" / "README.md").read_text()
    commands = re.findall(r"^\$ mspc .*$", readme, re.MULTILINE)
    assert [command.split()[2] for command in commands] == ["compile", "verify", "view", "search"]
    places = [done.stdout.index(f"{command}\n") for command in commands]
    assert places == sorted(places)
    for line in ("AllReduce", "equal: 12 values on 4 ranks", "4 collectives of 4 ranks", "search "):
        assert line in done.stdout
    assert max(map(len, re.findall(r"^(?![ $]).*$", readme, re.MULTILINE))) <= 120
    written = {path.name for path in (tmp_path / "project").iterdir()}
    assert written == {"README.md", "net.py", "saved_graph", "net.view.html"}


def test_nobody_reads_it(tmp_path: Path) -> None:
    command = f"{' '.join(SERVED)} demo project | head -1; echo ${{PIPESTATUS[0]}}"
    done = succeed("bash", "-c", command, cwd=tmp_path)
    assert done.stdout == "The project is in project: net.py, README.md.\n141\n"
    assert done.stderr == ""


def test_tables_of_a_narrow_terminal_cut_no_word(tmp_path: Path) -> None:
    source = resources.files("mspc.commands").joinpath("demo/net.py.txt").read_text()
    (tmp_path / "net.py").write_text(source.replace('"up"', '"üp"'))
    pieces: dict[int, set[str]] = {}
    for width in (20, 60, 80, 120, 200):
        environment = {**os.environ, "COLUMNS": str(width), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        done = succeed(*SERVED, "compile", "net.py", "--ranks", "4", "--all", cwd=tmp_path, env=environment)
        tables = done.stdout[done.stdout.index("\n\n") : done.stdout.index("\nrank 0: ")]
        assert max(map(len, tables.splitlines())) <= width
        pieces[width] = {piece for word in tables.split() for piece in re.findall(r"[^-./:,_)\]]+", word)}
    for width in (20, 60, 80, 120):
        assert pieces[width] <= pieces[200] | {"mspc"}
        assert {"ReduceScatter", "AllGather", "Float32", "shard(", "KiB", "sharded"} <= pieces[width]


def test_a_folder_with_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    for folder, said in ((".", "the folder . is not empty: it has mine.txt"), ("mine.txt", "mine.txt is a file")):
        done = demo(tmp_path, folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert message_of(done.stderr) == f"error: {said}\n  note: give a new folder: mspc demo FOLDER\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def listed(tmp_path: Path, mode: str | None = None, device: str | None = None) -> list[str]:
    file = tmp_path / "passes.json"
    list_passes(mode, DeviceOption(device) if device else None, file)
    return [row["name"] for row in json.loads(file.read_text())]


def test_every_pass_is_listed_in_order_with_its_effect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(tmp_path) == [step.name for step in STEPS]
    out = capsys.readouterr().out
    assert "cut_stages              GPU, stages  " in out
    rows = json.loads((tmp_path / "passes.json").read_text())
    assert all(row["summary"] for row in rows)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_a_mode_and_a_device_choose_the_passes_of_a_compile(tmp_path: Path, mode: str, device: str) -> None:
    name = device.upper()
    compiled = [*shared_passes(mode, name), *rank_passes(name, stages=2, offloads=True)]
    assert listed(tmp_path, mode, device) == compiled


def test_passes_without_work_are_left_out() -> None:
    idle = idle_passes(regions=False, offloads=False, staged=False, quantizes=False)
    assert idle == {"hoist_invariants", "check_offload", "join_micro_batches", "quantize_products", "assign_stages"}
    assert idle_passes(regions=True, offloads=True, staged=True, quantizes=True) == set()
    assert not {"cut_stages", "offload"} & {*rank_passes()}
    assert rank_passes(stages=2).index("cut_stages") == 1
    gpu = rank_passes("GPU", stages=2)
    assert gpu.index("cut_stages") == gpu.index("pack_attention") + 2  # after matmuls are joined


def test_optional_passes_have_no_number_of_their_own() -> None:
    numbers = dict((name, number) for number, name in numbered(shared_passes("semi_auto_parallel")))
    assert (numbers["decompose"], numbers["grad"], numbers["join_micro_batches"], numbers["simplify"]) == (0, 1, 1, 2)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(MspcError, match="there is no parallel mode 'data_paralel'"):
        list_passes("data_paralel", None, None)


def test_a_preset_fits_one_screen_and_json_has_all_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "plan.json"
    assert plan(ConfigurationRequest(preset="llama3-8b", ranks=8, machine="h100", sequence=8192, json=out)) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 50
    assert "tokens/s a rank" in shown
    content = json.loads(out.read_text())
    stages = content["memory"]["stages"]
    assert content["memory"]["worst_rank_bytes"] == max(stage["peak_bytes"] for stage in stages)
    assert content["memory"]["last_stage_bytes"] == stages[-1]["peak_bytes"] == sum(stages[-1]["parts"].values())
    assert content["memory"]["worst_rank_bytes"] <= content["memory"]["capacity_bytes"]
    assert sum(content["parts_seconds"].values()) == pytest.approx(content["step_seconds"])
    assert 0.2 < content["model_flops_utilisation"] < 1


def test_faster_settings_have_the_names_of_the_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "train.toml"
    config.write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 64\n'
        '[parallelism]\ntensor_parallel_degree = 8\n[activation_checkpoint]\nmode = "full"\n'
    )
    out = tmp_path / "plan.json"
    plan(ConfigurationRequest(config, ranks=16, machine="h100", json=out, better=True))
    assert "faster settings that fit" in capsys.readouterr().out
    content = json.loads(out.read_text())
    assert content["better"]
    first = content["better"][0]
    assert first["step_seconds"] < content["step_seconds"]
    assert "parallelism.tensor_parallel_degree" in first["settings"]


def test_one_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="name one configuration"):
        plan(ConfigurationRequest())
    with pytest.raises(MspcError, match="no degrees fit"):
        plan(ConfigurationRequest(preset="llama3.1-405b", ranks=8, machine="h100"))


def test_a_plan_is_proved_at_small_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "gpt.args"
    config.write_text(
        "--num-layers 4\n--hidden-size 512\n--num-attention-heads 8\n--group-query-attention\n--num-query-groups 4\n"
        "--seq-length 1024\n--max-position-embeddings 1024\n--micro-batch-size 1\n--global-batch-size 32\n--bf16\n"
        "--tensor-model-parallel-size 2\n--pipeline-model-parallel-size 2\n--use-distributed-optimizer\n"
        "--disable-bias-linear\n--sequence-parallel\n"
    )
    assert plan(ConfigurationRequest(arguments=config, ranks=16, machine="h100", verify=True)) == 0
    shown = capsys.readouterr().out
    assert "a step with tensor 2, pipeline 2, data 4 beside one of one device:\nequal: " in shown
    assert "values of 8 ranks of 2 kinds" in shown
    dense = re.sub("--group.*\n.*\n|--pipeline.*\n", "", config.read_text())
    experts = "--num-experts 4\n--expert-model-parallel-size {0}\n--expert-tensor-parallel-size {0}\n"
    latent = "--multi-latent-attention\n--q-lora-rank 64\n--kv-lora-rank 32\n--context-parallel-size 2\n"
    hybrid = "--is-hybrid-model\n--hybrid-layer-pattern M-*-M-*-\n--mamba-num-heads 8\n"
    for more, found in (
        (experts.format(1), "data 4 beside one of one device:\nequal: "), (experts.format(2), "expert 2 beside"),
        (latent, "context 2 beside one of one device:\nequal: "), (hybrid, "equal: "),
        (f"{hybrid}--context-parallel-size 2\n", "not proved: tensor 2, pipeline 1, data 2, context 2: "),
    ):  # fmt: skip
        config.write_text(dense + more)
        plan(ConfigurationRequest(arguments=config, ranks=8, machine="h100", verify=True))
        assert found in capsys.readouterr().out
    with pytest.raises(MspcError, match="--json needs a file"):
        plan(ConfigurationRequest(preset="llama3-8b", ranks=8, verify=True, json=Path("-")))


MAX_MODULES = 396
"""Modules of mspc that the quick start's compile may load, of some 960."""
ASKED_FOR = {
    "mspc.mindspore_api.dataset.vision": "operations on images, which the script does not name",
    "mspc.mindspore_api.mindrecord": "files of records",
    "mspc.commands.search": "another command",
    "mspc.plans.contents": "there is no plan",
    "mspc.doctor": "the script has no mistake",
    "mspc.engine.job": "no rank runs",
    "mspc.search.plans.table": "plans are compared by `mspc search`",
    "mspc.ops.convolution": "the network has no convolution",
    "mspc.ops.cuda": "the network runs on no GPU",
    "mspc.ops.collective.gpu_launch": "the network runs on no GPU",
    "mspc.search.model.model": "nothing is searched for",
    "mspc.runtime.executor": "nothing is run",
    "concurrent.futures": "no thread reads data",
    "lark": "no text is read",
    "logging": "no thread reads data",
    "mpi4py": "no rank runs",
    "multiprocessing": "no process reads data",
    "networkx": "no circle is looked for",
    "numpy.ma": "NumPy loads it for `unique`",
    "rich": "nothing is drawn",
    "sqlite3": "files of records alone need it",
}
"""Modules that a plain compile does without, and all below them, with the reason."""


def loaded(code: str, *arguments: str) -> list[str]:
    """The modules that a process has loaded at the end of `code`, in which `sys` is there."""
    text = f"import sys\n{code}\nprint(*sys.modules, sep='\\n')"
    done = succeed(sys.executable, "-c", text, *arguments)
    return done.stdout.splitlines()


COMMAND = """
from mspc.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""


@pytest.fixture(scope="module")
def compiled(root: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that a compile of the quick start has loaded."""
    script, out = root / "samples" / "quickstart" / "net.py", tmp_path_factory.mktemp("start") / "out"
    return loaded(COMMAND, "compile", str(script), "--ranks", "8", "--save-graphs", "--out", str(out))


def test_a_compile_loads_few_modules(compiled: list[str]) -> None:
    own = [name for name in compiled if name.partition(".")[0] == "mspc"]
    assert 100 < len(own) <= MAX_MODULES


@pytest.mark.parametrize("name", sorted(ASKED_FOR))
def test_a_compile_does_without(compiled: list[str], name: str) -> None:
    assert [each for each in compiled if f"{each}.".startswith(f"{name}.")] == []


def test_a_list_of_commands_needs_no_arrays() -> None:
    assert [name for name in loaded(COMMAND, "--help") if name.partition(".")[0] in ("numpy", "networkx")] == []


def test_the_package_opens_with_little() -> None:
    before = set(loaded(""))
    own = {
        "mspc",
        "mspc.mindspore_api",
        "mspc.mindspore_api.alias",
        "mspc.mindspore_api.call_handler",
        "mspc.mindspore_api.rooms",
    }
    assert set(loaded("import mspc")) - before == own | set(loaded("import functools, os, typing, types")) - before


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"{more})

class Net(nn.Cell):
    def construct(self, x):
        return ops.relu(x)

net = Net()
for _ in range(2):
    net(Tensor(np.ones((4, 8)), ms.float32))
net(Tensor(np.ones((8, 8)), ms.float32))
"""
TWO = ", loss_repeated_mean=False, gradients_mean=True"
SAID = (
    "warning: net.py:6:1: set_auto_parallel_context(loss_repeated_mean=False) changes nothing here: a loss that "
    "ranks repeat always counts once\n"
    "warning: net.py:6:1: set_auto_parallel_context(gradients_mean=True) changes nothing here: it counts in "
    "data_parallel and hybrid_parallel mode, and the mode is semi_auto_parallel\n"
)


def test_both_commands_say_it_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.format(more=TWO))
    compile_target("net.py", CompileOptions(ranks=2))
    assert capsys.readouterr().err == SAID
    run_script(script, 2, simulate=True)
    assert capsys.readouterr().err == SAID
    run_script(script, simulate=True)
    assert capsys.readouterr().err == SAID


def test_a_script_that_wants_more_ranks_says_it_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is started on one rank first, and again on all once it is known how many it wants."""
    script.write_text(SCRIPT.format(more=f"{TWO}, device_num=2"))
    run_script(script, simulate=True)
    assert capsys.readouterr().err == SAID


def test_a_script_that_depends_on_its_rank_says_it_once(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SCRIPT.format(more=TWO).replace("ops.relu(x)", "ops.relu(x) * SCALE")
    scale = "ms.communication.init(); SCALE = 1 + ms.communication.get_rank()"
    script.write_text(text.replace("\nms.set", f"{scale}\nms.set", 1))
    compile_target("net.py", CompileOptions(ranks=2))
    said = capsys.readouterr()
    assert said.err == SAID
    assert "the network depends on get_rank()" in said.out


@pytest.mark.parametrize("setting", ["auto_pipeline=True", "grad_accumulation_step=4"])
def test_what_would_change_the_numbers_is_refused(script: Path, setting: str) -> None:
    script.write_text(SCRIPT.format(more=f", {setting}"))
    for command in (
        lambda: compile_target("net.py", CompileOptions(ranks=2)),
        lambda: run_script(script, 2, simulate=True),
    ):
        said = rf"set_auto_parallel_context\({setting}\): (.* not supported|give )"
        with pytest.raises(MspcError, match=said) as raised:
            command()
        assert raised.value.exit_status == 2
        assert raised.value.location is not None
        assert raised.value.location.line == 6


def test_a_compile_says_what_the_front_end_noticed(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.write_text(SCRIPT.format(more="").replace("        return", "        print(x, sep='-')\n        return"))
    compile_target("net.py", CompileOptions(ranks=2))
    assert "print() inside a compiled function: sep changes nothing" in capsys.readouterr().err
