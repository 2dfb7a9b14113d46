"""Every setting works, is refused, or says once by name that it changes nothing; none at its default says a word."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc import nn
from mspc.communication import init
from mspc.dataset import config as dataset_config
from mspc.ir.layout import NamedLayout
from mspc.mindspore_api import runtime as device
from mspc.mindspore_api import state
from mspc.mindspore_api.context import FrozenContext, freeze
from mspc.mindspore_api.runtime import asked_device
from mspc.mindspore_api.setting_kind import CallSite, Setting, with_entries
from mspc.mindspore_api.settings import ALGORITHM, CONTEXT, DATASET, DEVICE_MEMORY, JIT, MODES, PARALLEL, RECOMPUTE
from mspc.mindspore_api.state import Session
from mspc.parallel import AutoParallel, set_algo_parameters

ROOT = Path(ms.__file__).parent


def _dataset(**values: Any) -> None:
    ((name, value),) = values.items()
    getattr(dataset_config, f"set_{name}")(value)


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Setting]]] = {
    "set_context": (ms.set_context, CONTEXT),
    "set_auto_parallel_context": (ms.set_auto_parallel_context, PARALLEL),
    "set_algo_parameters": (set_algo_parameters, ALGORITHM),
    "set_memory": (device.set_memory, DEVICE_MEMORY),
    "dataset.config": (_dataset, DATASET),
    "jit": (lambda **options: ms.jit(abs, **options), JIT),
    "Cell.recompute": (lambda **options: nn.ReLU().recompute(**options), RECOMPUTE),
}
OTHER: dict[str, Any] = {
    "device_target": "GPU", "memory_optimize_level": "O1", "memory_offload": "ON", "deterministic": "ON",
    "parallel_mode": "data_parallel", "search_mode": "dynamic_programming",
    "auto_parallel_search_mode": "recursive_programming", "dataset_strategy": "full_batch",
    "communi_parallel_mode": "no_group_parallel", "algo_approxi_epsilon": 0.5, "init_size": "3GB",
    "increase_size": "3GB", "max_size": "3GB", "jit_config": {"jit_level": "O1"}, "ascend_config": {"x": 1},
    "comm_fusion": {"allreduce": {"mode": "size", "config": 8}}, "all_reduce_fusion_config": [2],
    "only_trainable_params": False, "capture_mode": "bytecode", "mode=PSJit": "PIJit", "input_signature": (1,),
    "hash_args": (1,), "ge_options": {"a": 1}, "infer_boost": "on", "pipeline_scheduler": "gpipe",
    "optimizer_level": "level2", "computation_communication_fusion_level": 1,
    "fp8_format": "hybrid", "fp8_recipe": "delayed", "fp8_layers": "all",
}  # fmt: skip
"""Legal values that are not the default, where its type does not give one."""
DONE_ANYWAY = {
    "precompile_only": "a compile runs nothing, and a run says so",
    "sharding_propagation": "the search there is", "auto_parallel_search_mode": "sets search_mode",
    "gpu_config": "its entries", "parallel_optimizer_config": "its entries",
    "strategy_ckpt_config": "its entries", "pipeline_config": "its entries",
    "mp_comm_recompute": "the cell keeps it", "parallel_optimizer_comm_recompute": "the cell keeps it",
    "num_parallel_workers": "data pipelines read it, which no graph knows of",
    "prefetch_size": "data pipelines read it, which no graph knows of",
}  # fmt: skip
"""Heeded without anybody reading the value."""
CASES = [(function, name) for function, (_, table) in FUNCTIONS.items() for name, _ in with_entries(table)]


@functools.cache
def readers() -> str:
    """The text of all files that may read a setting."""
    own = {ROOT / "mindspore_api" / name for name in ("settings.py", "setting.py", "context.py", "checks.py")}
    folders = [init.parent for init in ROOT.glob("[a-z]*/__init__.py")]
    files = [p for folder in folders for p in folder.rglob("*.py") if p not in own]
    return "".join(p.read_text(encoding="utf-8") for p in files)


def other(setting: Setting) -> Any:
    for key in (setting.name, f"{setting.name}={setting.default}"):
        if key in OTHER:
            return OTHER[key]
    if isinstance(setting.default, bool):
        return not setting.default
    return setting.default + 1 if isinstance(setting.default, int) else f"{setting.default}x"


def arguments(table: dict[str, Setting], name: str, value: Any) -> dict[str, Any]:
    """The keyword for a setting, or for the entry of a dict."""
    key, _, entry = name.partition("[")
    return {key: {entry.strip("']"): value}} if entry else {key: value}


def call(function: str, name: str, value: Any) -> None:
    setter, table = FUNCTIONS[function]
    setter(**arguments(table, name, value))


def setting_of(function: str, name: str) -> Setting:
    return dict(with_entries(FUNCTIONS[function][1]))[name]


@pytest.mark.parametrize(("function", "name"), CASES)
def test_a_value_that_is_not_the_default(function: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    setting = setting_of(function, name)
    if setting.entries:
        return
    if setting.refused:
        with pytest.raises(ValueError, match=name.split("[")[0]) as raised:
            call(function, name, other(setting))
        assert isinstance(raised.value, ms.MspcError)
        assert freeze() == FrozenContext()
        return
    call(function, name, other(setting))
    said = capsys.readouterr().err
    call(function, name, other(setting))
    assert capsys.readouterr().err == "", "said twice"
    if said:
        assert re.fullmatch(rf"warning: .*{re.escape(name)}=.* changes nothing here: .+\n", said)
        return
    assert setting.changes
    assert freeze() != FrozenContext() or asked_device()["index"] == 1 or name in DONE_ANYWAY
    if name not in DONE_ANYWAY and f'"{setting.attribute or name}"' not in readers():
        assert re.search(rf"\.{setting.frozen_name}\b", readers()), "nobody reads it"


@pytest.mark.parametrize(("function", "name"), CASES)
def test_the_default_says_nothing(function: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    setting = setting_of(function, name)
    if name in ("device_num", "search_mode", "auto_parallel_search_mode"):
        return  # "not given"
    call(function, name, setting.default)
    assert capsys.readouterr().err == ""
    assert freeze().changing_nothing("run", "CPU") == []


PLACES = [
    CallSite(command, mode, device, frozenset(enabled))
    for command in ("compile", "run")
    for mode in MODES
    for device in ("CPU", "GPU")
    for enabled in ((), ("enable_parallel_optimizer",), ("pipeline_stages",))
]


@pytest.mark.parametrize(("function", "name"), [c for c in CASES if setting_of(*c).is_conditional])
def test_what_counts_in_some_places_is_said_in_the_others(function: str, name: str) -> None:
    setting = setting_of(function, name)
    assert {bool(setting.without_effect(place)) for place in PLACES} == {True, False}
    if setting.refused:  # a file that is not there
        return
    call(function, name, other(setting))
    said = [text for command in ("run", "compile") for _, text in freeze().changing_nothing(command, "CPU")]
    assert said
    assert all(f"{name}=" in text and " changes nothing here: " in text for text in said)
    ms.reset_auto_parallel_context()
    assert function == "set_context" or freeze().changing_nothing("run", "CPU") == []


METHODS: dict[str, tuple[tuple[Any, ...], str]] = {
    "dataset_strategy": (("full_batch",), ""),
    "hsdp": ((2, 0, "level2"), ""),
    "comm_fusion": (({"openstate": False},), ""),
    "enable_gradients_mean": ((), ""),
    "disable_gradient_fp32_sync": ((), ""),
    "disable_loss_repeated_mean": ((), "AutoParallel.disable_loss_repeated_mean()"),
    "enable_fp32_communication": ((), ""),
    "no_init_parameters_in_compile": ((), "AutoParallel.no_init_parameters_in_compile()"),
    "save_param_strategy_file": (("a.ckpt",), ""),
    "load_param_strategy_file": (("a.ckpt",), "refused"),
    "disable_strategy_file_only_for_trainable_params": ((), ""),
    "save_operator_strategy_file": (("a.json",), ""),
    "load_operator_strategy_file": (("a.json",), "refused"),
    "set_group_ckpt_save_file": (("g",), ""),
    "print_local_norm": ((), "AutoParallel.print_local_norm()"),
    "dump_local_norm": (("n",), "AutoParallel.dump_local_norm('n')"),
    "enable_device_local_norm": ((), "AutoParallel.enable_device_local_norm()"),
    "transformer_opt": (("o.json",), "refused"),
    "pipeline": ((2,), ""),
}


def test_the_methods_of_auto_parallel_are_all_listed() -> None:
    own = {name for name in vars(AutoParallel) if not name.startswith("_")} - {"construct", "wrapping"}
    assert own == set(METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_auto_parallel(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    init()
    values, expected = METHODS[name]
    net = AutoParallel(nn.ReLU())
    before = freeze(net)
    if expected == "refused":
        with pytest.raises(ValueError, match=f"AutoParallel.{name}") as raised:
            getattr(net, name)(*values)
        assert isinstance(raised.value, ms.MspcError)
        return
    for _ in range(2):
        getattr(net, name)(*values)
    said = capsys.readouterr().err
    assert said.count("\n") == bool(expected)
    assert expected in said
    assert bool(expected) or freeze(net) != before


def test_each_argument_of_a_pipeline_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    init()
    net = AutoParallel(nn.ReLU())
    net.pipeline(1, output_broadcast=True, interleave=True, scheduler="gpipe")
    assert "output_broadcast=True) changes nothing here: all stages have the results" in capsys.readouterr().err
    said = [text for _, text in freeze(net).changing_nothing("run", "CPU")]
    shown = "AutoParallel.pipeline(stages=1, interleave=True, scheduler='gpipe')"
    assert {text.rpartition("AutoParallel")[2] for text in said} == {
        f"{shown.removeprefix('AutoParallel')} changes nothing here: there is one pipeline stage"
    }
    net.pipeline(2, interleave=True, scheduler="gpipe")
    assert freeze(net).changing_nothing("run", "CPU") == []


def test_auto_parallel_says_what_its_search_and_its_mode_make_of_settings(capsys: pytest.CaptureFixture[str]) -> None:
    init()
    AutoParallel(nn.ReLU(), "sharding_propagation")
    assert capsys.readouterr().err == ""
    AutoParallel(nn.ReLU(), "recursive_programming")
    assert capsys.readouterr().err == ""
    net = AutoParallel(nn.ReLU())
    net.enable_gradients_mean()
    ((_, said),) = freeze(net).changing_nothing("run", "CPU")
    assert "AutoParallel.enable_gradients_mean() changes nothing here: it counts in data_parallel and hybrid" in said


def test_a_setting_is_said_with_the_users_line_by_one_rank(capsys: pytest.CaptureFixture[str]) -> None:
    ms.set_context(max_call_depth=5)
    said = capsys.readouterr().err
    assert re.match(r"warning: (.*/)?test_settings\.py:\d+:\d+: set_context\(max_call_depth=5\) changes", said)
    state.swap(state.Session.of_rank(1, 2))
    ms.set_context(max_call_depth=5)
    assert capsys.readouterr().err == ""


def test_a_file_of_strategies_must_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "strategies.ckpt"
    with pytest.raises(ValueError, match=r"strategy_ckpt_load_file='.*strategies\.ckpt'\): there is no such file"):
        ms.set_auto_parallel_context(strategy_ckpt_load_file=str(file))
    with pytest.raises(ValueError, match="there is no such file"):
        ms.set_auto_parallel_context(strategy_ckpt_config={"load_file": str(file)})
    assert capsys.readouterr().err == ""
    file.write_bytes(b"")
    ms.set_auto_parallel_context(strategy_ckpt_load_file=str(file))
    assert capsys.readouterr().err == ""
    assert "it counts in semi_auto_parallel" in freeze().changing_nothing("run", "CPU")[0][1]


@pytest.mark.parametrize(
    ("fusion", "words"),
    [
        ({"allreduce": {"mode": "index", "config": [1]}}, "gradients are merged by size, not by index"),
        ({"allgather": {"mode": "size", "config": 8}}, "allgather operators are not merged"),
        ({"openstate": False}, ""),
    ],
)
def test_ways_to_merge(fusion: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    ms.set_auto_parallel_context(comm_fusion=fusion)
    said = capsys.readouterr().err
    assert words in said
    assert bool(words) == bool(said)


def test_a_rank_number_of_its_own_is_no_news(capsys: pytest.CaptureFixture[str]) -> None:
    state.swap(state.Session(3, 8, launched=True))
    ms.set_auto_parallel_context(global_rank=3)
    assert capsys.readouterr().err == ""
    ms.set_auto_parallel_context(global_rank=2)
    assert "global_rank=2) changes nothing here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: ms.jit(abs, jit_levl="O1"), ValueError, "jit has no key 'jit_levl'"),
        (lambda: ms.jit(mode="tape"), ValueError, "mode='tape' is not one of 'PSJit', 'PIJit'"),
        (lambda: ms.jit(5), TypeError, "jit takes a function, not int"),
        (lambda: nn.ReLU().recompute(mp_com=False), ValueError, "Cell.recompute has no key 'mp_com'"),
        (lambda: nn.ReLU().recompute(mp_comm_recompute=1), TypeError, "mp_comm_recompute must be True or False, not 1"),
        (lambda: nn.ReLU().set_comm_fusion("all"), TypeError,
         "ReLU.set_comm_fusion: fusion_type must be an integer, not 'all'"),
        (lambda: nn.ReLU().set_comm_fusion(-1), ValueError,
         "Cell.set_comm_fusion: fusion_type=-1 must be at least 0"),
    ],
)
def test_options_that_there_are_not(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, ms.MspcError)
    assert caught.value.message == message


def test_every_way_to_mark_a_function() -> None:
    for marked in (ms.jit(abs), ms.jit()(abs), ms.jit(function=abs), ms.jit(fn=abs), ms.jit(capture_mode="ast")(abs)):
        assert marked.fn is abs


def test_a_file_of_options_for_large_networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    init()
    net, file = AutoParallel(nn.ReLU()), tmp_path / "speed_up.json"
    net.transformer_opt(None)
    net.transformer_opt("")
    file.write_text('{"computation_communication_fusion_level": 1, "computation_allgather_overlap": true}')
    net.transformer_opt(str(file))
    assert freeze(net).computation_communication_fusion_level == 1  # type: ignore[attr-defined]  # a field of what is frozen
    said = capsys.readouterr().err
    assert re.search(r"transformer_opt\(computation_allgather_overlap=True\) changes nothing here: coll", said)
    assert [text for _, text in freeze(net).changing_nothing("compile", "GPU")] == []
    ((_, text),) = freeze(net).changing_nothing("compile", "CPU")
    assert text.endswith("speed_up.json') changes nothing here: it counts in programs for GPUs")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the file is no JSON"),
        ("[1]", "the file must hold an object, not list"),
        ('{"computation_communication_fusion_levels": 1}', "has no key 'computation_communication_fusion_levels'"),
        ('{"computation_communication_fusion_level": 4}', "computation_communication_fusion_level"),
        ('{"computation_allgather_overlap": 1}', "computation_allgather_overlap"),
    ],
)
def test_a_wrong_file_of_options(text: str, message: str, tmp_path: Path) -> None:
    init()
    net, file = AutoParallel(nn.ReLU()), tmp_path / "speed_up.json"
    file.write_text(text)
    before = freeze(net)
    with pytest.raises((ValueError, TypeError), match=message) as raised:
        net.transformer_opt(str(file))
    assert isinstance(raised.value, ms.MspcError)
    assert freeze(net) == before


def test_values_reach_the_compiler():
    ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", save_graphs=True, save_graphs_path="g")
    ms.set_auto_parallel_context(
        parallel_mode=ms.ParallelMode.AUTO_PARALLEL,
        search_mode="sharding_propagation",
        device_num=8,
        gradients_mean=True,
        enable_parallel_optimizer=True,
        parallel_optimizer_config={"parallel_optimizer_threshold": 0, "optimizer_weight_shard_size": 2},
        comm_fusion={"allreduce": {"mode": "size", "config": 32}},
        all_reduce_fusion_config=[2, 4],
    )
    frozen = freeze()
    assert (frozen.parallel_mode, frozen.search_mode, frozen.device_num) == ("auto_parallel", "sharding_propagation", 8)
    assert (frozen.save_graphs, frozen.save_graphs_path, frozen.device_target) == (2, "g", "GPU")
    assert (frozen.optimizer_threshold, frozen.optimizer_shard_size) == (0, 2)
    assert frozen.comm_fusion == (("allreduce", (("mode", "size"), ("config", 32))),)
    assert frozen.all_reduce_fusion_config == (2, 4)
    assert frozen.gradients_mean
    hash(frozen)


def test_full_batch_and_dataset_strategy_agree():
    ms.set_auto_parallel_context(full_batch=True)
    assert freeze().dataset_strategy == "full_batch"
    assert freeze().full_batch
    ms.set_auto_parallel_context(dataset_strategy="data_parallel")
    assert not ms.get_auto_parallel_context("full_batch")
    ms.set_auto_parallel_context(dataset_strategy=((8, 1), (1,)))
    assert freeze().dataset_strategy == ((8, 1), (1,))
    layout = ms.Layout((2, 4), ("a", "b"))("a", "None")
    ms.set_auto_parallel_context(dataset_strategy=(layout, layout))
    assert freeze().dataset_strategy == (NamedLayout((2, 4), ("a", "b"), (1, -1)),) * 2


def test_the_launcher_decides_ranks(session: Session):
    ms.set_auto_parallel_context(device_num=4, global_rank=3)
    assert (ms.get_auto_parallel_context("device_num"), ms.get_auto_parallel_context("global_rank")) == (4, 0)
    session.launched, session.size, session.rank = True, 8, 5
    assert (ms.get_auto_parallel_context("device_num"), ms.get_auto_parallel_context("global_rank")) == (8, 5)
    assert freeze().device_num == 4


def test_what_waits_outside_of_device_memory_is_read_back_and_changes_nothing(capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        ms.set_offload_context({"offload_param": "CPU", "aio_block_size": "0.5GB", "enable_aio": True})
    warnings = capsys.readouterr().err
    assert warnings.count("offload() of cells and optimizers moves values to the host") == 2  # once for every entry
    found = ms.get_offload_context()
    assert (found["offload_param"], found["aio_block_size"], found["hbm_ratio"]) == ("cpu", 1 << 29, 1.0)
