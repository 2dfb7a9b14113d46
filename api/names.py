"""The public names of mspc, as `mindspore` has them: where each one lives. Looked up on first use."""

from __future__ import annotations

import importlib
from typing import Any

from mspc.api.alias import home_of, public, public_modules

_FROM: dict[str, tuple[str, ...]] = {
    "mspc.api.common.tensor": ("Tensor",),
    "mspc.api.common.parameter": ("Parameter", "ParameterTuple"),
    "mspc.api.common.row_tensor": ("RowTensor",),
    "mspc.api.ops.sparse_tensor": ("COOTensor", "CSRTensor"),
    "mspc.api.common.jit_config": ("JitConfig",),
    "mspc.api.common.symbol": ("Symbol",),
    "mspc.api.common.seed": ("set_seed", "get_seed"),
    "mspc.api.common.generator": (
        "Generator", "default_generator", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state",
    ),
    "mspc.api.common.gradient": ("value_and_grad", "grad", "jit", "GradOperation"),
    "mspc.api.common.derivatives": ("jacfwd", "jacrev", "jvp", "vjp", "vmap"),
    "mspc.api.context": (
        "COMPATIBLE", "GRAPH_MODE", "LAX", "PYNATIVE_MODE", "ParallelMode", "STRICT", "set_context", "get_context",
        "set_auto_parallel_context",
        "get_auto_parallel_context", "reset_auto_parallel_context", "set_offload_context", "get_offload_context",
    ),
    "mspc.api.common.dtype": (
        "bool", "bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
        "bfloat16",
        "float32", "float64", "complex64", "complex128", "byte", "short", "half", "single", "double", "int_", "uint",
        "float_", "long", "ubyte", "ushort", "uintc", "uintp", "intc", "intp", "cfloat", "cdouble", "list_", "tuple_",
        "tensor_type", "TensorType", "Type", "type_none", "string", "number", "Int",
        "dtype_to_nptype", "dtype_to_pytype", "get_py_obj_dtype", "pytype_to_dtype",
    ),
    "mspc.api.runtime": (
        "empty_cache", "get_current_device", "launch_blocking", "max_memory_allocated", "max_memory_reserved",
        "memory_allocated", "memory_reserved", "memory_stats", "memory_summary", "reset_max_memory_allocated",
        "reset_max_memory_reserved", "reset_peak_memory_stats", "set_cpu_affinity", "set_deterministic", "set_device",
        "set_kernel_launch_capture", "set_kernel_launch_group", "dispatch_threads_num", "set_memory", "synchronize",
    ),
    "mspc.api.hal.stream": (
        "Event", "Stream", "StreamCtx", "communication_stream", "current_stream", "default_stream", "set_cur_stream",
    ),
    "mspc.api.log": ("get_level", "get_log_config"),
    "mspc.api.common.compiling": ("enable_dynamic", "no_inline", "set_dump", "set_recursion_limit"),
    "mspc.api.common.recompute": ("recompute",),
    "mspc.api.parallel.strategy_files": ("set_op_strategy_config",),
    "mspc.api.common.tensor_memory": ("frombuffer",),
    "mspc.ir.types": ("DType",),
    "mspc.ir.diagnostics": ("MspcError",),
    "mspc.api.nn.cell": ("Cell",),
    "mspc.api.ops.compile_time": ("constexpr",),
    "mspc.api.parallel.reshard": ("reshard",),
    "mspc.api.common.api": (
        "from_numpy", "is_tensor", "mutable", "tensor", "ms_function", "ms_class", "jit_class", "lazy_inline",
    ),
    "mspc.api.train.model": ("Model",),
    "mspc.api.train.serialization": (
        "async_ckpt_thread_status", "load_checkpoint", "load_checkpoint_async", "load_param_into_net",
        "save_checkpoint",
    ),
    "mspc.api.train.mindir": ("export", "load"),
    "mspc.api.parallel.other_ranks": ("get_ckpt_path_with_strategy",),
    "mspc.api.train.resume": ("resume_training",),
    "mspc.api.train.callback": (
        "Callback", "CheckpointConfig", "EarlyStopping", "History", "LambdaCallback", "LearningRateScheduler",
        "LossMonitor", "ModelCheckpoint", "ReduceLROnPlateau", "RunContext", "SummaryCollector", "TimeMonitor",
    ),
    "mspc.api.train.dataset_helper": ("DatasetHelper", "connect_network_with_dataset", "data_sink"),
    "mspc.api.train.history": ("SummaryRecord",),
    "mspc.api.profiler": ("Profiler",),
    "mspc.api.train.loss_scale_manager": ("DynamicLossScaleManager", "FixedLossScaleManager", "LossScaleManager"),
    "mspc.api.train.metrics.accuracy": (
        "Accuracy", "Top1CategoricalAccuracy", "Top5CategoricalAccuracy", "TopKCategoricalAccuracy",
    ),
    "mspc.api.train.metrics.confusion_matrix": ("ConfusionMatrix", "ConfusionMatrixMetric"),
    "mspc.api.train.metrics.counted": ("F1", "Fbeta", "Precision", "Recall"),
    "mspc.api.train.metrics.curves": ("ROC", "auc"),
    "mspc.api.train.metrics.error": ("Loss", "MAE", "MSE", "Perplexity"),
    "mspc.api.train.metrics.factory": ("get_metric_fn",),
    "mspc.api.train.metrics.metric": ("Metric", "rearrange_inputs"),
    "mspc.api.train.metrics.similarity": ("CosineSimilarity", "Dice"),
    "mspc.api.amp": ("build_train_network",),
    "mspc.api.parallel.checkpoint_transform": (
        "build_searched_strategy", "load_distributed_checkpoint", "merge_sliced_parameter", "rank_list_for_transform",
        "restore_group_info_list", "transform_checkpoint_by_rank", "transform_checkpoints",
    ),
    "mspc.api.parallel.layout": ("Layout",),
    "mspc.api.parallel.shard": ("shard",),
    "mspc.api.parallel.auto_parallel": ("AutoParallel",),
    "mspc.api.parallel.algo_parameters": ("get_algo_parameters", "reset_algo_parameters", "set_algo_parameters"),
}  # fmt: skip
HOME = {name: module for module, names in _FROM.items() for name in names}


def find(name: str) -> Any:
    """The object behind a public name.

    Raises:
        AttributeError: mspc has no such name.
    """
    if name == "__all__":
        return names()
    if name in HOME:
        return public(getattr(importlib.import_module(HOME[name]), name))
    if name and home_of(name) is not None:
        return importlib.import_module(f"mspc.{name}")
    from mspc.api.absent import why_absent  # only on the way to an error

    raise AttributeError(f"module 'mspc' has no attribute {name!r}{why_absent(name, names())}")


def names() -> list[str]:
    """Every public name, for `dir()` and `import *`: the objects, and the modules right below; none hides Python's."""
    return sorted({*HOME.keys() - {"bool"}, *(module for module in public_modules() if module and "." not in module)})
