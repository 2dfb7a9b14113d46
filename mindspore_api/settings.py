"""Table of all settings that a script can give: name, default, legal values, and the effect or the reason for none. The
fields of `FrozenContext`, of `Config` and of the graph's header come from this table.

A new setting is a row here, and a pass that reads its `attribute` from the header.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mspc.mindspore_api import checks, state
from mspc.mindspore_api.checks import boolean, integer, integers, mapping, one_of, text
from mspc.mindspore_api.setting_kind import CallSite, Setting, table

SHARDED = ("semi_auto_parallel", "auto_parallel")
DATA_PARALLEL = ("data_parallel",)
MODES = ("stand_alone", "data_parallel", "hybrid_parallel", *SHARDED)
SEARCHES = ("recursive_programming", "dynamic_programming", "sharding_propagation")
BUCKET = 64 << 20
"""Default number of bytes of gradients that are reduced together, as in MindSpore."""

GRAPHS_ALWAYS = "networks are compiled to graphs in every mode"
STAYS = "offload() of cells and optimizers moves values to the host, and the compiler decides when they are copied"
MEMORY = "memory is planned for each network, and nothing more is taken"
FUSES = "operators are fused always"
CUTS_LOADED = "operators are sharded as the file says"
CUTS_SAVED = "how operators and parameters are sharded is written to the file"
ONE_STAGE = "there is one pipeline stage"
LIKE_PRODUCTS = "convolutions round as matmuls do, by matmul_allow_tf32"
TIMED = "kernels of convolutions are timed, and the fastest runs"
NO_SEARCH = "only a search by costs would read it, and strategies are found by sharding propagation"
NO_NORMS = "no norms are written"
BESIDE = "collectives always overlap work that does not read them"
FP8_RECIPES = ("tensorwise", "delayed", "blockwise", "mxfp8")
LEVELS = ("level1", "level2", "level3")
SHAPES_OF_CALLS = "a graph is compiled for the shapes of each call"


def _search(value: str) -> str:
    return "" if value == "sharding_propagation" else value


def missing_file(path: str) -> str:
    """Return why a file cannot be read, or "" if it can. This depends on the run, not on the support by mspc."""
    return "" if os.path.isfile(path) else "there is no such file"


def _other_rank(rank: int) -> str:
    # Through its dictionary: a compile observes reads of the rank.
    return "" if rank == vars(state.current())["rank"] else "ranks have the numbers that their launcher gave them"


def _device(target: str) -> str:
    return "there is no Ascend here; the network runs on the available device" if target == "Ascend" else ""


def _fusions(config: Mapping[str, Any]) -> str:
    if (config.get("allreduce") or {}).get("mode") == "index":
        return "gradients are merged by size, not by index"
    others = [name for name in ("allgather", "reducescatter") if name in config]
    return f"{others[0]} operators are not merged, only the AllReduce of gradients" if others else ""


def bucket(fusion: tuple[tuple[str, Any], ...]) -> int:
    """Return the bytes of gradients that are reduced together: `comm_fusion={"openstate": True, "allreduce": {"mode":
    "size", "config": 32}}` means 32 MB; with openstate False, every gradient is reduced separately."""
    found = dict(fusion)
    if found.get("openstate") is False:
        return 0
    wanted = dict(found.get("allreduce") or ())
    return int(wanted["config"]) << 20 if wanted.get("mode") == "size" and wanted.get("config") else BUCKET


def _on(value: str) -> bool:
    return value == "ON"


def _counts_if(holds: Callable[[CallSite], bool], otherwise: str) -> Callable[[CallSite], str]:
    return lambda place: "" if holds(place) else otherwise


def _is_compile(place: CallSite) -> bool:
    return place.command == "compile"


_compiles = _counts_if(_is_compile, "a run writes no dumps and no folder; mspc compile does")
_only_compiles = _counts_if(_is_compile, "this command runs; mspc compile only compiles")
_gpu_runs = _counts_if(lambda place: (place.command, place.device) == ("run", "GPU"), "it counts in a run on a GPU")
_gpu = _counts_if(lambda place: place.command == "compile" or place.device == "GPU", "it counts on a GPU")
_gpu_programs = _counts_if(lambda place: place.device == "GPU", "it counts in programs for GPUs")

_GPU_CONFIG = (
    Setting(
        "matmul_allow_tf32",
        False,
        boolean,
        "products of Float32 round operands to TF32",
        elsewhere=_gpu,
        attribute="matmul_allow_tf32",
    ),
    Setting("conv_allow_tf32", True, boolean, ignored=LIKE_PRODUCTS),
    Setting("conv_fprop_algo", "normal", text, ignored=TIMED),
    Setting("conv_dgrad_algo", "normal", text, ignored=TIMED),
    Setting("conv_wgrad_algo", "normal", text, ignored=TIMED),
)


def _gpu_config(key: str, value: Any) -> dict[str, Any]:
    found = checks.known_keys(*(entry.name for entry in _GPU_CONFIG))(key, value)
    for entry in _GPU_CONFIG:
        if entry.name in found:
            entry.check(f"{key}[{entry.name!r}]", found[entry.name])
    return found


CONTEXT = table(
    Setting("mode", 0, one_of(0, 1), "whether a call after a change of the script compiles again"),
    Setting("device_target", "CPU", one_of("CPU", "GPU", "Ascend"), "which device runs", ignored=_device),
    Setting("device_id", 0, integer(0), "which GPU runs", elsewhere=_gpu_runs),
    Setting("save_graphs", 0, checks.save_graphs, "which dumps a compile writes", elsewhere=_compiles),
    Setting("save_graphs_path", "", text, "the folder that a compile writes", elsewhere=_compiles),
    Setting("precompile_only", False, boolean, "a compile runs nothing", elsewhere=_only_compiles),
    Setting("max_call_depth", 1000, integer(1), ignored="how deep calls may nest is fixed"),
    Setting("max_device_memory", "1024GB", text, ignored=MEMORY),
    Setting("mempool_block_size", "1GB", text, ignored=MEMORY),
    Setting("recompute_comm_overlap", "", text, ignored=BESIDE),
    Setting("memory_optimize_level", "O0", ignored=MEMORY),
    Setting("memory_offload", "OFF", ignored=STAYS),
    Setting("enable_graph_kernel", False, boolean, ignored=FUSES),
    Setting("graph_kernel_flags", "", text, ignored=FUSES),
    Setting("enable_reduce_precision", True, boolean, ignored="element types are those of the network"),
    Setting("enable_compile_cache", False, boolean, ignored="a compile is not stored"),
    Setting("compile_cache_path", ".", text, ignored="a compile is not stored"),
    Setting("deterministic", "OFF", one_of("OFF", "ON"), "the same bits at every run", compiled=_on),
    Setting("jit_config", {}, mapping, ignored=GRAPHS_ALWAYS),
    Setting("jit_level", "", text, ignored=GRAPHS_ALWAYS),
    Setting("jit_syntax_level", 2, ignored="everything that can be compiled is compiled at every level"),
    Setting("runtime_num_threads", 0, integer(0), ignored="a rank runs in one thread, its products in BLAS"),
    Setting("inter_op_parallel_num", 0, integer(0), ignored="operators run in the order of the graph"),
    Setting("pynative_synchronize", False, boolean, ignored=GRAPHS_ALWAYS),
    Setting("check_bprop", False, boolean, ignored="a gradient always has the type of its value"),
    Setting("reserve_class_name_in_scope", True, boolean, ignored="scopes name classes always"),
    Setting("env_config_path", "", text, ignored="no such file is read"),
    Setting("print_file_path", "", text, ignored="print() in a network prints nothing"),
    Setting("ascend_config", {}, mapping, ignored="there is no Ascend here"),
    Setting("fp8_format", "", one_of("", "hybrid", "e4m3"), "linear layers multiply in Float8", attribute="fp8_format"),
    Setting("fp8_recipe", "tensorwise", one_of(*FP8_RECIPES), "scales of Float8", attribute="fp8_recipe"),
    Setting("fp8_layers", "inner", one_of("inner", "all"), "whether the first and last layers are in Float8, too",
            attribute="fp8_layers"),
    Setting("gpu_config", {}, _gpu_config, "see its entries", entries=_GPU_CONFIG),
)
"""Keywords of `set_context`."""

_OPTIMIZER = (
    Setting("gradient_accumulation_shard", False, boolean, ignored="accumulated gradients are sharded like parameters"),
    Setting("parallel_optimizer_threshold", 64, integer(0), "KiB from which a parameter is sharded", modes=SHARDED,
            needs="enable_parallel_optimizer", field="optimizer_threshold", attribute="parallel_optimizer_threshold"),
    Setting("optimizer_weight_shard_size", -1, integer(-1), "ranks that share an update", modes=SHARDED,
            needs="enable_parallel_optimizer", field="optimizer_shard_size", attribute="optimizer_weight_shard_size"),
    Setting("optimizer_level", "level1", one_of(*LEVELS), "level3: parameters are gathered for gradients once more",
            modes=SHARDED, needs="enable_parallel_optimizer", attribute="optimizer_level"),
)  # fmt: skip
_STRATEGY_FILES = (
    Setting("load_file", "", text, CUTS_LOADED, refused=missing_file, modes=SHARDED, field="strategy_load_file"),
    Setting("save_file", "", text, CUTS_SAVED, modes=SHARDED, field="strategy_save_file"),
    Setting(
        "only_trainable_params",
        True,
        boolean,
        "states of the optimizer are in the file, too",
        modes=SHARDED,
        field="strategy_trainable_only",
    ),
    Setting("operator_load_file", "", text, CUTS_LOADED, refused=missing_file, modes=SHARDED),
    Setting("operator_save_file", "", text, CUTS_SAVED, modes=SHARDED),
)


def _stages(place: CallSite) -> str:
    return "" if "pipeline_stages" in place.enabled else ONE_STAGE


_PIPELINE = (
    Setting(
        "pipeline_interleave",
        False,
        boolean,
        "a rank has several stages",
        modes=SHARDED,
        elsewhere=_stages,
        attribute="pipeline_interleave",
    ),
    Setting(
        "pipeline_scheduler",
        "1f1b",
        checks.schedule,
        "the order of a stage's work",
        modes=SHARDED,
        elsewhere=_stages,
        attribute="pipeline_scheduler",
    ),
)
_GROUPS = ("all_group_parallel", "same_server_group_parallel", "no_group_parallel")


def _names(entries: tuple[Setting, ...]) -> checks.Check:
    return checks.known_keys(*(entry.name for entry in entries))


PARALLEL = table(
    Setting("device_num", 0, integer(1, 65536), "the number of ranks, without a launcher"),
    Setting("global_rank", 0, integer(0, 65535), ignored=_other_rank),
    Setting("gradients_mean", False, boolean, "gradients are means over ranks, not sums",
            modes=(*DATA_PARALLEL, "hybrid_parallel"), attribute="gradients_mean"),
    Setting("gradient_fp32_sync", True, boolean, "gradients are summed in Float32", modes=SHARDED,
            attribute="gradient_fp32_sync"),
    Setting("loss_repeated_mean", True, boolean, ignored="a loss that ranks repeat always counts once"),
    Setting("parallel_mode", "stand_alone", one_of(*MODES), "how the network is spread over ranks"),
    Setting("search_mode", "", one_of(*SEARCHES), "how strategies are found", modes=("auto_parallel",),
            attribute="search_mode", compiled=_search),
    Setting("auto_parallel_search_mode", "", one_of(*SEARCHES), "as search_mode", modes=("auto_parallel",)),
    Setting("sharding_propagation", False, boolean, "as search_mode", modes=("auto_parallel",)),
    Setting("parameter_broadcast", False, boolean, "parameters that are not sharded start with the values of rank 0",
            modes=DATA_PARALLEL + SHARDED),
    Setting("strategy_ckpt_load_file", "", text, CUTS_LOADED, refused=missing_file, modes=SHARDED),
    Setting("strategy_ckpt_save_file", "", text, CUTS_SAVED, modes=SHARDED),
    Setting("strategy_ckpt_config", {}, _names(_STRATEGY_FILES), "see its entries", entries=_STRATEGY_FILES),
    Setting("group_ckpt_save_file", "", text, "which ranks hold the same is written to the file",
            modes=DATA_PARALLEL + SHARDED),
    Setting("full_batch", False, boolean, "every rank feeds the global batch", modes=SHARDED),
    Setting("full_batch_is_set", False, boolean, ignored="it says whether full_batch was given"),
    Setting("dataset_strategy", "data_parallel", checks.dataset_strategy, "how data are sharded", modes=SHARDED),
    Setting("enable_parallel_optimizer", False, boolean, "replicas share a parameter's update", modes=SHARDED,
            needs="enable_parallel_optimizer", attribute="parallel_optimizer"),
    Setting("parallel_optimizer_config", {}, _names(_OPTIMIZER), "see its entries", entries=_OPTIMIZER),
    Setting("optimizer_weight_shard_size", -1, integer(-1), "as in parallel_optimizer_config", modes=SHARDED,
            needs="enable_parallel_optimizer"),
    Setting("optimizer_weight_shard_aggregated_save", False, boolean, ignored="integrated_save of "
            "CheckpointConfig says whether saved parameters are global"),
    Setting("force_fp32_communication", False, boolean, "halves are summed over ranks in Float32",
            modes=(*DATA_PARALLEL, *SHARDED), attribute="force_fp32_communication"),
    Setting("all_reduce_fusion_config", [], integers, ignored="gradients are merged by size; see comm_fusion"),
    Setting("comm_fusion", {}, checks.comm_fusion, "bytes of gradients that travel together", _fusions,
            modes=(*DATA_PARALLEL, *SHARDED), attribute="gradient_bucket", compiled=bucket),
    Setting("computation_communication_fusion_level", 3, one_of(0, 1, 2, 3), "overlap of collectives in pieces "
            "with matmuls: never, forward, backward, or both", modes=SHARDED, elsewhere=_gpu_programs,
            attribute="computation_communication_fusion_level"),
    Setting("pad_uneven", False, boolean, "dimensions that the slices of a strategy do not divide are padded",
            modes=SHARDED, attribute="pad_uneven"),
    Setting("pipeline_stages", 1, integer(1), "stages of the network, each on ranks of its own", modes=SHARDED,
            attribute="pipeline_stages"),
    Setting("auto_pipeline", False, boolean, refused="give pipeline_stages, and the cells their stages"),
    Setting("pipeline_result_broadcast", False, boolean, ignored="all stages have the results always"),
    Setting("pipeline_segments", 1, integer(1), "above 1 as pipeline_interleave", modes=SHARDED, elsewhere=_stages,
            attribute="pipeline_segments"),
    Setting("pipeline_config", {}, _names(_PIPELINE), "see its entries", entries=_PIPELINE),
    Setting("grad_accumulation_step", 1, integer(1), refused="it is not supported; add gradients up in the training "
            "step, and update every so many steps"),
    Setting("communi_parallel_mode", "all_group_parallel", one_of(*_GROUPS), ignored="collectives overlap by schedule"),
    Setting("enable_alltoall", False, boolean, ignored="AlltoAll is used wherever it sends the fewest bytes"),
    Setting("dump_local_norm", False, boolean, ignored=NO_NORMS),
    Setting("dump_local_norm_path", "", text, ignored=NO_NORMS),
    Setting("dump_device_local_norm", False, boolean, ignored=NO_NORMS),
    Setting("auto_parallel_new_interface", False, boolean, ignored="AutoParallel needs no such mark"),
    Setting("init_param_in_compile", True, boolean, ignored="values are made when a run needs them"),
)  # fmt: skip
"""Keywords of `set_auto_parallel_context`. device_num 0 means "not given"."""

ALGORITHM = table(
    Setting("fully_use_devices", True, ignored=NO_SEARCH),
    Setting("elementwise_op_strategy_follow", False, ignored=NO_SEARCH),
    Setting("enable_algo_approxi", False, ignored=NO_SEARCH),
    Setting("algo_approxi_epsilon", 0.1, ignored=NO_SEARCH),
    Setting("tensor_slice_align_enable", False, ignored=NO_SEARCH),
    Setting("tensor_slice_align_size", 16, ignored=NO_SEARCH),
)
"""Keywords of `set_algo_parameters`, checked by the type of their default."""

DEVICE_MEMORY = table(
    Setting("init_size", "2GB", checks.gigabytes, ignored=MEMORY),
    Setting("increase_size", "2GB", checks.gigabytes, ignored=MEMORY),
    Setting("max_size", "1024GB", checks.gigabytes, ignored=MEMORY),
    Setting("optimize_level", "O0", ignored=MEMORY),
    Setting("huge_page_reserve_size", "0GB", ignored=MEMORY),
)
"""Arguments of `runtime.set_memory`."""

OFFLOAD = table(
    Setting("offload_path", "./offload", text, ignored=STAYS),
    Setting("offload_cpu_size", 512 << 30, checks.gigabytes_in_bytes, ignored=STAYS),
    Setting("offload_disk_size", 1024 << 30, checks.gigabytes_in_bytes, ignored=STAYS),
    Setting("hbm_ratio", 1.0, checks.share, ignored=STAYS),
    Setting("cpu_ratio", 1.0, checks.share, ignored=STAYS),
    Setting("enable_pinned_mem", True, boolean, ignored=STAYS),
    Setting("enable_aio", True, boolean, ignored=STAYS),
    Setting("aio_block_size", 1 << 30, checks.gigabytes_in_bytes, ignored=STAYS),
    Setting("aio_queue_depth", 8, integer(1), ignored=STAYS),
    Setting("offload_param", "", checks.host_or_disk, ignored=STAYS),
    Setting("offload_checkpoint", "", checks.host_or_disk, ignored=STAYS),
    Setting("auto_offload", True, boolean, ignored=STAYS),
    Setting("host_mem_block_size", 1 << 30, checks.gigabytes_in_bytes, ignored=STAYS),
)
"""Entries of the dict of `set_offload_context`."""

DATASET = table(
    Setting("num_parallel_workers", 8, integer(1), changes="how many threads share a stage, up to the cores there are"),
    Setting("prefetch_size", 16, integer(1), changes="the number of rows, or batches, to prefetch"),
)
"""Settings of `dataset.config.set_...`, except the seed."""

AUTO_PARALLEL = table(Setting("output_broadcast", False, boolean, ignored="all stages have the results always"))
"""Arguments of methods of `AutoParallel` that are no keywords of `set_auto_parallel_context`."""

SPEED_UP = table(
    Setting("computation_communication_fusion_level", 3, one_of(0, 1, 2, 3), "as in set_auto_parallel_context"),
    Setting("recomputation_communication_overlap", False, boolean, ignored=BESIDE),
    Setting("grad_matmul_communication_overlap", False, checks.switch_or_names, ignored=BESIDE),
    Setting("grad_fa_allgather_overlap", False, boolean, ignored=BESIDE),
    Setting("grad_computation_allreduce_overlap", False, boolean, ignored=BESIDE),
    Setting("computation_allgather_overlap", False, boolean, ignored=BESIDE),
    Setting("enable_interleave_split_concat_branch", False, boolean, ignored=BESIDE),
    Setting("enable_interleave_parallel_branch", False, boolean, ignored=BESIDE),
    Setting("enable_communication_fusion", False, boolean, ignored="gradients are merged by size; see comm_fusion"),
    Setting("dataset_broadcast_opt_level", 0, one_of(0, 1, 2, 3), ignored="every rank reads its data"),
    Setting("allreduce_and_biasadd_swap", False, boolean, ignored="a bias is added at the point with the fewest bytes"),
    Setting("enable_allreduce_slice_to_reducescatter", False, boolean, ignored="a ReduceScatter is used wherever it "
            "sends fewer bytes"),
)  # fmt: skip
"""Entries of the file of `AutoParallel.transformer_opt`."""

JIT_CONFIG = table(
    Setting("jit_level", "", one_of("", "O0", "O1", "O2"), ignored=FUSES),
    Setting("exc_mode", "auto", one_of("auto", "sink", "no_sink"), ignored="there is no Ascend here"),
    Setting("jit_syntax_level", "", one_of("", "STRICT", "LAX"), ignored="errors of a compile are always raised"),
    Setting("debug_level", "RELEASE", one_of("RELEASE", "DEBUG"), ignored="errors name their lines always"),
    Setting("infer_boost", "off", one_of("on", "off"), ignored="there is no Ascend here"),
)  # fmt: skip
"""Arguments of `JitConfig`."""

JIT = table(
    Setting("capture_mode", "ast", one_of("ast", "bytecode", "trace"), ignored="functions are read, never traced"),
    Setting("mode", "PSJit", one_of("PSJit", "PIJit"), ignored="functions are read, never traced"),
    Setting("input_signature", None, ignored=SHAPES_OF_CALLS),
    Setting("dynamic", 0, one_of(0, 1), ignored=SHAPES_OF_CALLS),
    Setting("hash_args", None, ignored="a graph belongs to the function and its arguments"),
    Setting("compile_once", False, boolean, ignored="a graph belongs to the function and its arguments"),
    Setting("jit_config", None, ignored=GRAPHS_ALWAYS),
    Setting("jit_level", "O0", text, ignored=FUSES),
    Setting("fullgraph", False, boolean, ignored="errors of a compile are always raised"),
    Setting("backend", "", text, ignored="the device decides how a graph runs"),
    Setting("disable_format_transform", False, boolean, ignored="tensors lie in memory row by row"),
    Setting("exec_order", "", text, ignored="operators run in the order of the graph"),
    Setting("ge_options", {}, mapping, ignored="there is no Ascend here"),
    Setting("infer_boost", "off", one_of("on", "off"), ignored="there is no Ascend here"),
)
"""Options of `jit`."""

RECOMPUTE = table(
    Setting("mp_comm_recompute", True, boolean, "communication of recomputed values is repeated"),
    Setting("parallel_optimizer_comm_recompute", False, boolean, "parameters are gathered again for gradients"),
    Setting("recompute_slice_activation", False, boolean, ignored="saved values stay in their layouts"),
    Setting("output_recompute", False, boolean, ignored=GRAPHS_ALWAYS),
    Setting("use_reentrant", True, boolean, ignored=GRAPHS_ALWAYS),
)  # fmt: skip
"""Options of `Cell.recompute`."""

SET_GRAD = table(Setting("requires_grad", False, boolean, ignored="the training cell decides what is differentiated"))
"""The argument of `Cell.set_grad`."""

OFFLOADED_CELLS = table(
    Setting("backward_prefetch", "Auto", checks.prefetch, "operators between a fetch and its reader"),
)
"""The argument of `Cell.offload` and `Primitive._offload`."""

PIPELINE_CELL = table(Setting("segment_config", None, ignored="a stage's parts follow from the order of values"))
"""The argument of `PipelineCell` that is no cell's stage."""

STAGE = table(Setting("pipeline_stage", 0, integer(0), "the stage of the cell's operators", elsewhere=_stages))
"""The stage that a cell is given."""

GENERAL_FIELDS = (
    "save_graphs", "save_graphs_path", "device_target", "mode", "deterministic", "fp8_format", "fp8_recipe",
    "fp8_layers",
)  # fmt: skip
"""Options of `set_context` for the compiler, in addition to the entries of gpu_config."""


def frozen_settings() -> dict[str, Setting]:
    """Return the settings in `FrozenContext`, by field name."""
    found = [CONTEXT[name] for name in GENERAL_FIELDS] + [*_GPU_CONFIG[:2]]
    for name, setting in PARALLEL.items():
        if name != "full_batch":  # dataset_strategy by another name
            found += [entry for entry in setting.entries if not entry.ignored] if setting.entries else [setting]
    return {setting.frozen_name: setting for setting in found}


def compiled_settings() -> dict[str, Setting]:
    """Return the settings that become fields of `Config` and attributes of the graph, by these names."""
    return {setting.attribute: setting for setting in frozen_settings().values() if setting.attribute}
