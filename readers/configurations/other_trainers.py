"""Readers of torchtitan's TOML, MaxText's YAML and mindformers' YAML, with Megatron's names of their settings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mspc.ir.diagnostics import did_you_mean
from mspc.readers.configurations.mistakes import HOST_RANKS
from mspc.readers.configurations.presets import PRESETS, preset_settings
from mspc.readers.configurations.settings import Setting, Values, tables_of

_NAMES = tables_of("trainers")
FLAVORS = {tuple(key.split()): model for key, model in _NAMES["torchtitan-flavors"].items()}
"""torchtitan's models by name and flavor."""
TITAN_DEGREES = ("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree")
TITAN = _NAMES["torchtitan"]
MAXTEXT = _NAMES["maxtext"]
MINDFORMERS_DEGREES = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel")
MINDFORMERS = _NAMES["mindformers"]
_DENSE = (
    ("swiglu", True), ("normalization", "RMSNorm"), ("position-embedding-type", "rope"), ("disable-bias-linear", True),
    ("hidden-dropout", 0.0), ("attention-dropout", 0.0), ("bf16", True), ("untie-embeddings-and-output-weights", True),
    ("moe-grouped-gemm", True), ("no-create-attention-mask-in-dataloader", True),
)  # fmt: skip
"""Settings of LLaMA-like models, which these tools train unless told otherwise."""


def is_titan(found: Values) -> bool:
    """Return if a TOML file is torchtitan's."""
    return "model.flavor" in found or any(name.startswith("parallelism.") for name in found.by_path)


def is_maxtext(found: Values) -> bool:
    """Return if a YAML file is MaxText's."""
    return "base_emb_dim" in found or "per_device_batch_size" in found or "base_config" in found


def is_mindformers(found: Values) -> bool:
    """Return if a YAML file is that of mindformers."""
    return any(name.startswith(("parallel_config.", "runner_config.")) for name in found.by_path)


def titan_ranks(found: Values) -> int:
    """Return the ranks that the degrees of a torchtitan file make; the fewest hosts if one degree is all the rest."""
    dense = math.prod(found.count(f"parallelism.{degree}", 1) for degree in TITAN_DEGREES)
    ranks = dense * found.count("parallelism.data_parallel_replicate_degree", 1)
    shard = found.count("parallelism.data_parallel_shard_degree")
    return ranks * shard if shard else max(HOST_RANKS, ranks, found.count("parallelism.expert_parallel_degree", 1))


def titan_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the settings of a torchtitan file. Raise MspcError for degrees that do not make the ranks."""
    name, flavor = found.value("model.name"), found.value("model.flavor")
    name = str(name).removesuffix("_ft")
    flavor = "debugmodel" if str(flavor).startswith("debugmodel") else flavor
    if flavor == "debugmodel":
        name = "experts" if found.count("parallelism.expert_parallel_degree", 1) > 1 else "llama3"
    if (name, flavor) not in FLAVORS:
        known = ", ".join(f"{model} {size}" for model, size in FLAVORS)
        raise found.wrong("model.flavor", f"is {flavor!r} of {name!r}; known are {known}")
    settings = {setting.name: setting for setting in preset_settings(FLAVORS[name, flavor])}
    settings["expert-tensor-parallel-size"] = Setting("expert-tensor-parallel-size", 1)
    for path, target in TITAN.items():
        if found.count(path):
            settings[target] = found.under(target, path)
    if found.count("parallelism.tensor_parallel_degree", 1) > 1:
        settings["sequence-parallel"] = Setting("sequence-parallel", True)
    dense = math.prod(found.count(f"parallelism.{degree}", 1) for degree in TITAN_DEGREES)
    replicate = found.count("parallelism.data_parallel_replicate_degree", 1)
    shard = found.count("parallelism.data_parallel_shard_degree")
    if shard and replicate * shard * dense != ranks:
        product = f"{shard} x data_parallel_replicate_degree {replicate} x {dense}"
        raise found.wrong("parallelism.data_parallel_shard_degree", f"{product} are not {ranks} ranks; -1 works")
    for each in ("use-distributed-optimizer", "overlap-param-gather"):
        settings.pop(each)
    if shard != 1:
        settings |= {setting.name: setting for setting in _sharded()}
    mode = found.value("activation_checkpoint.mode") or "selective"
    if mode not in ("none", "selective", "full", "memory_budget"):
        raise found.wrong("activation_checkpoint.mode", f"is {mode!r}; it is none, selective, full or memory_budget")
    if mode != "none":
        # Selective checkpoints store the results of every second matmul, close to a full one of every second layer.
        layers = int(settings["num-layers"].value)
        settings["recompute-granularity"] = Setting("recompute-granularity", "full")
        settings["recompute-method"] = Setting("recompute-method", "uniform" if mode == "full" else "block")
        settings["recompute-num-layers"] = Setting("recompute-num-layers", 1 if mode == "full" else layers // 2)
    if any("float8" in str(setting.value) for path, setting in found.by_path.items() if "converters" in path):
        settings["fp8-format"] = Setting("fp8-format", "hybrid")
        settings["fp8-recipe"] = Setting("fp8-recipe", "tensorwise")
    yield from settings.values()


def _sharded() -> Iterator[Setting]:
    yield Setting("use-megatron-fsdp", True)
    yield Setting("data-parallel-sharding-strategy", "optim_grads_params")


def maxtext_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the settings of a MaxText file. Raise MspcError for a model that is not known."""
    name = str(found.value("model_name") or "default")
    settings = {key: Setting(key, value) for key, value in _DENSE}
    if name != "default":
        known = {_plain(preset): preset for preset in PRESETS}
        if _plain(name) not in known:
            note = "; ".join(did_you_mean(name, list(PRESETS))) or f"known are {', '.join(PRESETS)}"
            raise found.wrong("model_name", f"is {name!r}; {note}")
        settings |= {setting.name: setting for setting in preset_settings(known[_plain(name)])}
    for path, target in MAXTEXT.items():
        if path in found and (name == "default" or target == "seq-length"):
            settings[target] = found.under(target, path)
    settings["group-query-attention"] = Setting("group-query-attention", True)
    degrees = {"tensor": 1, "fsdp": 1, "expert": 1, "pipeline": 1, "context": 1}
    for level in ("ici", "dcn"):
        for kind in degrees:
            value = found.value(f"{level}_{kind}_parallelism")
            if isinstance(value, int) and value > 0:
                degrees[kind] *= value
    for kind, target in (("tensor", "tensor-model-parallel-size"), ("pipeline", "pipeline-model-parallel-size"),
                         ("context", "context-parallel-size"), ("expert", "expert-model-parallel-size")):  # fmt: skip
        settings[target] = found.under(target, f"ici_{kind}_parallelism", degrees[kind])
    # MaxText divides parameters over all other ranks unless a file says otherwise.
    settings |= {setting.name: setting for setting in _sharded()}
    settings.pop("use-distributed-optimizer", None)
    batch = found.value("per_device_batch_size") or 1
    if isinstance(batch, bool) or not isinstance(batch, int | float) or batch <= 0:
        raise found.wrong("per_device_batch_size", f"is {batch!r}; it is a number above 0")
    settings["micro-batch-size"] = found.under("micro-batch-size", "per_device_batch_size", max(1, int(batch)))
    policy = str(found.value("remat_policy") or "full")
    if policy in ("full", "minimal", "save_qkv_proj", "minimal_flash"):
        settings["recompute-granularity"] = Setting("recompute-granularity", "full")
        settings["recompute-method"] = Setting("recompute-method", "uniform")
    if str(found.value("quantization") or "").startswith("fp8"):
        settings["fp8-format"] = Setting("fp8-format", "hybrid")
    yield from settings.values()


def mindformers_ranks(found: Values) -> int:
    """Return the ranks that the degrees of a mindformers file make."""
    return math.prod(found.count(f"parallel_config.{degree}", 1) for degree in MINDFORMERS_DEGREES)


def mindformers_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the settings of a mindformers file."""
    settings = {key: Setting(key, value) for key, value in _DENSE}
    for path, setting in found.by_path.items():
        for tail, target in MINDFORMERS.items():
            if (path.endswith("." + tail) or path == tail) and ("model_config" in path or "." in tail):
                settings[target] = Setting(target, setting.value, setting.line, path)
    if "num-query-groups" in settings:
        settings["group-query-attention"] = Setting("group-query-attention", True)
    if found.value("parallel.enable_parallel_optimizer"):
        settings["use-distributed-optimizer"] = Setting("use-distributed-optimizer", True)
    dense = mindformers_ranks(found)
    data = found.count("parallel_config.data_parallel")
    if data and dense != ranks:
        right = ranks * data // dense if ranks * data % dense == 0 and ranks * data >= dense else 0
        fits = f"{right} works" if right else f"--ranks {dense} works"
        product = f"{data} x model_parallel x pipeline_stage x context_parallel = {dense}"
        raise found.wrong("parallel_config.data_parallel", f"{product} are not {ranks} ranks; {fits}")
    size = found.count("runner_config.batch_size", 1)
    batch = size * found.count("parallel_config.micro_batch_num", 1) * max(1, data)
    settings["global-batch-size"] = Setting("global-batch-size", batch)
    recompute = found.value("recompute_config.recompute")
    if recompute is True:
        settings["recompute-granularity"] = Setting("recompute-granularity", "full")
        settings["recompute-method"] = Setting("recompute-method", "uniform")
    yield from settings.values()


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _line(found: Values, path: str) -> int:
    return found[path].line if path in found else 0
