"""`set_context` and `set_auto_parallel_context`: what a script asks of the compiler, frozen when a
graph is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from mspc.api import state
from mspc.api.errors import ApiKeyError, ApiTypeError, ApiValueError
from mspc.ir.named_layout import INTERLEAVED, NamedLayout

GRAPH_MODE = 0
PYNATIVE_MODE = 1


class ParallelMode:
    """The ways to spread a network over ranks."""

    STAND_ALONE = "stand_alone"
    DATA_PARALLEL = "data_parallel"
    HYBRID_PARALLEL = "hybrid_parallel"
    SEMI_AUTO_PARALLEL = "semi_auto_parallel"
    AUTO_PARALLEL = "auto_parallel"
    MODE_LIST: ClassVar[list[str]] = [
        STAND_ALONE, DATA_PARALLEL, HYBRID_PARALLEL, SEMI_AUTO_PARALLEL, AUTO_PARALLEL,
    ]  # fmt: skip


SEARCH_MODES = ("recursive_programming", "dynamic_programming", "sharding_propagation")

Check = Callable[[str, Any], Any]
"""Takes a key and a value; returns the value to keep or raises."""


def _one_of(*choices: Any) -> Check:
    def check(key: str, value: Any) -> Any:
        if value not in choices:
            raise ApiValueError(f"{key}={value!r} is not one of {', '.join(map(repr, choices))}")
        return value

    return check


def _boolean(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ApiTypeError(f"{key} must be True or False, not {value!r}")
    return value


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ApiTypeError(f"{key} must be a string, not {value!r}")
    return value


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ApiTypeError(f"{key} must be a dict, not {value!r}")
    return dict(value)


def _integer(low: int, high: int | None = None) -> Check:
    def check(key: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ApiTypeError(f"{key} must be an integer, not {value!r}")
        if value < low or (high is not None and value > high):
            limits = f"from {low} to {high}" if high is not None else f"at least {low}"
            raise ApiValueError(f"{key}={value} must be {limits}")
        return value

    return check


def _integers(key: str, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(i, int) for i in value):
        raise ApiTypeError(f"{key} must be a list of integers, not {value!r}")
    return list(value)


def _anything(key: str, value: Any) -> Any:
    return value


def _save_graphs(key: str, value: Any) -> int:
    if isinstance(value, bool):
        return 2 if value else 0
    return _integer(0, 3)(key, value)


def check_dataset_strategy(key: str, value: Any) -> str | tuple[Any, ...]:
    """ "data_parallel", "full_batch", or one tuple of ints (or layout) for every input of the network."""
    if isinstance(value, str):
        return _one_of("data_parallel", "full_batch")(key, value)
    if not isinstance(value, tuple):
        raise ApiTypeError(
            f"{key} must be a string or a tuple with one tuple or Layout per input, not {value!r}"
        )
    for entry in value:
        if isinstance(entry, NamedLayout):
            if entry.interleaved > 1:
                raise ApiValueError(f"{key}: data cannot be cut by the axis {INTERLEAVED!r}")
            continue
        if not isinstance(entry, tuple) or not all(isinstance(cut, int) and cut > 0 for cut in entry):
            raise ApiTypeError(
                f"{key}: {entry!r} is neither a tuple of positive integers nor a Layout",
                ["write one entry per input, for example ((8, 1), (8, 1))"],
            )
    return value


_COMM_FUSION = ("openstate", "allreduce", "allgather", "reducescatter")
_OPTIMIZER = ("gradient_accumulation_shard", "parallel_optimizer_threshold", "optimizer_weight_shard_size")


def _known_keys(*known: str) -> Check:
    def check(key: str, value: Any) -> dict[str, Any]:
        for name in _mapping(key, value):
            if name not in known:
                raise ApiValueError(f"{key} has no entry {name!r}; it takes {', '.join(known)}")
        return dict(value)

    return check


def _comm_fusion(key: str, value: Any) -> dict[str, Any]:
    """{"openstate": bool, "allreduce": {"mode": "auto" | "size" | "index", "config": ...}, ...}."""
    example = [f'write {key}={{"allreduce": {{"mode": "size", "config": 32}}}}']
    for name, entry in _mapping(key, value).items():
        if name == "openstate":
            _boolean(f"{key}['openstate']", entry)
            continue
        if name not in _COMM_FUSION:
            raise ApiKeyError(f"{key} has no entry {name!r}; it takes {', '.join(_COMM_FUSION)}")
        what = f"{key}[{name!r}]"
        given = _mapping(what, entry)
        if set(given) != {"mode", "config"}:
            raise ApiKeyError(f"{what} must have the keys 'mode' and 'config', not {list(given)}", example)
        modes = {"auto": "None", "size": "a number of MB"} | ({"index": "a list"} if name == "allreduce" else {})
        mode, config = given["mode"], given["config"]
        if mode not in modes:
            raise ApiKeyError(f"{what}: mode {mode!r} is not one of {', '.join(map(repr, modes))}", example)
        if mode == "size":
            _integer(0)(f"{what}['config']", config)
        elif mode == "index":
            _integers(f"{what}['config']", config)
        elif config is not None:
            raise ApiTypeError(f"{what}: config is {config!r}; mode 'auto' takes None", example)
    return dict(value)


_GPU_FLAGS = ("matmul_allow_tf32", "conv_allow_tf32")
_GPU_ALGORITHMS = ("conv_fprop_algo", "conv_dgrad_algo", "conv_wgrad_algo")


def _gpu_config(key: str, value: Any) -> dict[str, Any]:
    checked = _known_keys(*_GPU_FLAGS, *_GPU_ALGORITHMS)(key, value)
    for name in checked:
        (_boolean if name in _GPU_FLAGS else _text)(f"{key}[{name!r}]", checked[name])
    return checked


CONTEXT: dict[str, tuple[Any, Check]] = {
    "mode": (GRAPH_MODE, _one_of(GRAPH_MODE, PYNATIVE_MODE)),
    "device_target": ("CPU", _one_of("CPU", "GPU", "Ascend")),
    "device_id": (0, _integer(0)),
    "save_graphs": (0, _save_graphs),
    "save_graphs_path": ("", _text),
    "precompile_only": (False, _boolean),
    "max_call_depth": (1000, _integer(1)),
    "max_device_memory": ("", _text),
    "mempool_block_size": ("1GB", _text),
    "memory_optimize_level": ("O0", _anything),
    "memory_offload": ("OFF", _anything),
    "enable_graph_kernel": (False, _boolean),
    "graph_kernel_flags": ("", _text),
    "enable_reduce_precision": (True, _boolean),
    "enable_compile_cache": (False, _boolean),
    "compile_cache_path": (".", _text),
    "deterministic": ("OFF", _one_of("OFF", "ON")),
    "jit_config": ({}, _mapping),
    "jit_level": ("", _text),
    "jit_syntax_level": (2, _anything),
    "runtime_num_threads": (0, _integer(0)),
    "inter_op_parallel_num": (0, _integer(0)),
    "pynative_synchronize": (False, _boolean),
    "check_bprop": (False, _boolean),
    "reserve_class_name_in_scope": (True, _boolean),
    "env_config_path": ("", _text),
    "print_file_path": ("", _text),
    "ascend_config": ({}, _mapping),
    "gpu_config": ({}, _gpu_config),
}
"""Keys of `set_context`: default and check. Those that tune a device are taken and have no effect
on the CPU.
"""

PARALLEL: dict[str, tuple[Any, Check]] = {
    "device_num": (0, _integer(1, 65536)),
    "global_rank": (0, _integer(0, 65535)),
    "gradients_mean": (False, _boolean),
    "gradient_fp32_sync": (True, _boolean),
    "loss_repeated_mean": (True, _boolean),
    "parallel_mode": (ParallelMode.STAND_ALONE, _one_of(*ParallelMode.MODE_LIST)),
    "search_mode": ("", _one_of(*SEARCH_MODES)),
    "auto_parallel_search_mode": ("", _one_of(*SEARCH_MODES)),
    "sharding_propagation": (False, _boolean),
    "parameter_broadcast": (False, _boolean),
    "strategy_ckpt_load_file": ("", _text),
    "strategy_ckpt_save_file": ("", _text),
    "strategy_ckpt_config": ({}, _mapping),
    "group_ckpt_save_file": ("", _text),
    "full_batch": (False, _boolean),
    "full_batch_is_set": (False, _boolean),
    "dataset_strategy": ("data_parallel", check_dataset_strategy),
    "enable_parallel_optimizer": (False, _boolean),
    "parallel_optimizer_config": ({}, _known_keys(*_OPTIMIZER)),
    "optimizer_weight_shard_size": (-1, _integer(-1)),
    "optimizer_weight_shard_aggregated_save": (False, _boolean),
    "force_fp32_communication": (False, _boolean),
    "all_reduce_fusion_config": ([], _integers),
    "comm_fusion": ({}, _comm_fusion),
    "pipeline_stages": (1, _integer(1)),
    "auto_pipeline": (False, _boolean),
    "pipeline_result_broadcast": (False, _boolean),
    "pipeline_segments": (1, _integer(1)),
    "pipeline_config": ({}, _known_keys("pipeline_interleave", "pipeline_scheduler")),
    "grad_accumulation_step": (1, _integer(1)),
    "communi_parallel_mode": (
        "all_group_parallel",
        _one_of("all_group_parallel", "same_server_group_parallel", "no_group_parallel"),
    ),
    "enable_alltoall": (False, _boolean),
    "dump_local_norm": (False, _boolean),
    "dump_local_norm_path": ("", _text),
    "dump_device_local_norm": (False, _boolean),
    "auto_parallel_new_interface": (False, _boolean),
    "init_param_in_compile": (True, _boolean),
}
"""Keys of `set_auto_parallel_context`: default and check. device_num 0 stands for "not given"."""


@dataclass(frozen=True)
class FrozenContext:
    """What the compiler is handed: the context as it was when the graph was launched.

    device_num: 0 when the script gave none. search_mode: "" when none was given.
    dataset_strategy: "data_parallel", "full_batch" or one tuple (or layout) per input.
    optimizer_threshold: in KiB; optimizer_shard_size: -1 for all replicas.
    matmul_allow_tf32, conv_allow_tf32: whether Float32 products of a GPU may round their operands to TF32, as
    `gpu_config` says. deterministic: only kernels that give the same bits at every run.
    """

    parallel_mode: str = ParallelMode.STAND_ALONE
    search_mode: str = ""
    device_num: int = 0
    gradients_mean: bool = False
    gradient_fp32_sync: bool = True
    loss_repeated_mean: bool = True
    dataset_strategy: str | tuple[Any, ...] = "data_parallel"
    enable_parallel_optimizer: bool = False
    optimizer_threshold: int = 64
    optimizer_shard_size: int = -1
    comm_fusion: tuple[tuple[str, Any], ...] = ()
    all_reduce_fusion_config: tuple[int, ...] = ()
    pipeline_stages: int = 1
    grad_accumulation_step: int = 1
    force_fp32_communication: bool = False
    enable_alltoall: bool = False
    strategy_ckpt_load_file: str = ""
    strategy_ckpt_save_file: str = ""
    group_ckpt_save_file: str = ""
    save_graphs: int = 0
    save_graphs_path: str = ""
    device_target: str = "CPU"
    mode: int = GRAPH_MODE
    training: bool = False
    matmul_allow_tf32: bool = False
    conv_allow_tf32: bool = True
    deterministic: bool = False

    @property
    def full_batch(self) -> bool:
        return self.dataset_strategy == "full_batch"

    def as_mapping(self) -> dict[str, Any]:
        """The values by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"full_batch": self.full_batch}


def _values(table: dict[str, tuple[Any, Check]], given: dict[str, Any]) -> dict[str, Any]:
    return {key: given.get(key, default) for key, (default, _) in table.items()}


def _checked(function: str, table: dict[str, tuple[Any, Check]], values: dict[str, Any]) -> dict[str, Any]:
    for key in values:
        if key not in table:
            raise ApiValueError(f"{function} has no key {key!r}", [_nearest(key, table)])
    return {key: table[key][1](key, value) for key, value in values.items()}


def _nearest(key: str, table: Mapping[str, Any]) -> str:
    import difflib  # only on the way to an error

    near = difflib.get_close_matches(key, table, 1)
    return f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(table)}"


def set_context(**values: Any) -> None:
    """Set general options: `mode`, `device_target`, `save_graphs` (False, True or 0 to 3),
    `save_graphs_path`, ...

    Raises:
        ValueError: a key or a value is not known. TypeError: a value has the wrong type.
    """
    state.current().general.update(_checked("set_context", CONTEXT, values))


def get_context(key: str) -> Any:
    """The value of one option of `set_context`. Raises ValueError for an unknown key."""
    if key not in CONTEXT:
        raise ApiValueError(f"get_context has no key {key!r}", [_nearest(key, CONTEXT)])
    return state.current().general.get(key, CONTEXT[key][0])


def set_auto_parallel_context(**values: Any) -> None:
    """Set options of parallel training.

    Raises:
        ValueError: a key or a value is not known. TypeError: a value has the wrong type.
    """
    checked = _checked("set_auto_parallel_context", PARALLEL, values)
    if "full_batch" in checked:
        checked["full_batch_is_set"] = True
        checked.setdefault("dataset_strategy", "full_batch" if checked["full_batch"] else "data_parallel")
    if "dataset_strategy" in checked:
        checked["full_batch"] = checked["dataset_strategy"] == "full_batch"
    if "auto_parallel_search_mode" in checked:
        checked.setdefault("search_mode", checked["auto_parallel_search_mode"])
    if checked.get("sharding_propagation"):
        checked.setdefault("search_mode", "sharding_propagation")
    state.current().parallel.update(checked)


def get_auto_parallel_context(key: str) -> Any:
    """The value of one option of `set_auto_parallel_context`; device_num and global_rank as the
    launcher has them.

    Raises:
        ValueError: the key is not known.
    """
    session = state.current()
    if key not in PARALLEL:
        raise ApiValueError(f"get_auto_parallel_context has no key {key!r}", [_nearest(key, PARALLEL)])
    value = session.parallel.get(key, PARALLEL[key][0])
    if key == "device_num":
        return session.size if session.launched or not value else value
    if key == "global_rank":
        return session.rank
    return value


def reset_auto_parallel_context() -> None:
    """Give every option of `set_auto_parallel_context` its default."""
    state.current().parallel.clear()


_reset_auto_parallel_context = reset_auto_parallel_context
"""MindSpore's older name."""


def set_ps_context(**values: Any) -> None:
    """Parameter servers are not supported; raises ValueError."""
    raise ApiValueError("set_ps_context: parameter servers are not supported")


def freeze(target: Any = None) -> FrozenContext:
    """The context as it stands now, for the compiler.

    `target` is the cell or function that is launched; an `AutoParallel` cell brings options of its own, its
    attribute `parallel_settings`, a dict with names of FrozenContext.
    """
    session = state.current()
    settings = getattr(target, "parallel_settings", None)
    # Every call of a network asks, and the answer hardly ever changes.
    asked = (session.parallel, session.general, bool(getattr(target, "training", False)), settings)
    if session.frozen is not None and session.frozen[0] == asked:
        return session.frozen[1]
    found = _frozen(*asked)
    session.frozen = deepcopy(asked), found
    return found


def _frozen(
    own: Mapping[str, Any], others: Mapping[str, Any], training: bool, settings: Mapping[str, Any] | None
) -> FrozenContext:
    parallel, general = _values(PARALLEL, dict(own)), _values(CONTEXT, dict(others))
    optimizer = parallel["parallel_optimizer_config"]
    shard_size = optimizer.get("optimizer_weight_shard_size", parallel["optimizer_weight_shard_size"])
    same = {f.name for f in fields(FrozenContext)}
    frozen = FrozenContext(
        **{
            key: value
            for key, value in parallel.items()
            if key in same - {"comm_fusion", "all_reduce_fusion_config"}
        },
        optimizer_threshold=optimizer.get("parallel_optimizer_threshold", 64),
        optimizer_shard_size=shard_size,
        comm_fusion=_frozen_items(parallel["comm_fusion"]),
        all_reduce_fusion_config=tuple(parallel["all_reduce_fusion_config"]),
        **{key: general[key] for key in ("save_graphs", "save_graphs_path", "device_target", "mode")},
        training=training,
        matmul_allow_tf32=general["gpu_config"].get("matmul_allow_tf32", False),
        conv_allow_tf32=general["gpu_config"].get("conv_allow_tf32", True),
        deterministic=general["deterministic"] == "ON",
    )
    return replace(frozen, **settings) if settings else frozen


def _frozen_items(value: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(
        (key, _frozen_items(item) if isinstance(item, Mapping) else item) for key, item in value.items()
    )
