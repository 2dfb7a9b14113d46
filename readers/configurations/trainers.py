"""Readers of configurations of trainers other than Megatron-LM, with Megatron's names of their settings: torchtitan's
TOML, YAML of MaxText, mindformers, NeMo and accelerate, DeepSpeed's JSON, Hugging Face's `config.json`, rows of
Megatron-Bridge's performance summary, and published models by name.

A DeepSpeed or accelerate file says nothing of the model: its sizes are read from the `config.json` beside it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.readers.configurations.mistakes import HOST_RANKS, IGNORED_PREFIXES, KNOWN, largest_divisor
from mspc.readers.configurations.settings import Setting, Values, tables_of

_TABLES = tables_of("models")
PRESETS: Mapping[str, str] = _TABLES["models"]
"""Arguments of each model, `name=value`, and names of groups of them, `@name`."""
_NAMES = tables_of("trainers")
FLAVORS = {tuple(key.split()): model for key, model in _NAMES["torchtitan-flavors"].items()}
"""torchtitan's models by name and flavor."""
RECIPES = _NAMES["bridge-precisions"]
"""Precisions, and Megatron's settings of 8-bit and 4-bit matmuls."""


def preset_settings(name: str) -> dict[str, Setting]:
    """Return the arguments of a published model by name. Raise MspcError if there is none of that name."""
    if name not in PRESETS:
        notes = [*did_you_mean(name, list(PRESETS)), f"published models: {', '.join(PRESETS)}"]
        raise MspcError(f"--preset {name}: there is no published model of this name", notes=notes)
    return _settings(PRESETS[name])


def _settings(text: str, when: bool = True) -> dict[str, Setting]:
    """Return the settings of a text such as `@sharded num-layers=2` by name; none unless a condition holds."""
    found: dict[str, Setting] = {}
    for part in text.split() * when:
        key, _, value = part.partition("=")
        if part.startswith("@"):
            found |= _settings(_TABLES["groups"][part[1:]])
        else:
            found[key] = Setting(key, {"true": True, "false": False}.get(value, value))
    return found


def _valued(family: str, found: Values) -> dict[str, Setting]:
    """Return the settings that follow from values of a file, by the rows of its family: a path with a value, or None
    if it is not set, and settings. Later rows override earlier ones."""
    settings: dict[str, Setting] = {}
    for pair, text in _NAMES["values"][family].items():
        path, _, value = pair.partition(" ")
        more = _settings(text, str(found.value(path)) == value)
        settings |= {name: found.under(name, path, each.value) for name, each in more.items()}
    return settings


def _named(table: str, found: Values) -> dict[str, Setting]:
    """Return the settings whose paths a table names."""
    names = {path: target for path, target in _NAMES[table].items() if found.value(path) is not None}
    return {target: found.under(target, path) for path, target in names.items()}


def _precision(text: str) -> dict[str, Setting]:
    """Return the settings of the 8-bit or 4-bit matmuls that a text names, such as `Float8LinearConverter`."""
    plain = text.lower().replace("float8", "fp8").replace("linear.mx", "mxfp8")
    return _settings(next((RECIPES[name] for name in ("NVFP4", "MXFP8", "FP8") if name.lower() in plain), ""))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def published(name: str) -> str:
    """Return the published model whose name a name such as `Qwen/Qwen3-4B-Instruct` begins with, or ""."""
    plain = re.sub(r"(\d)00m", r"0\1b", re.sub(r"(\d)p(\d)", r"\1\2", _plain(name.rpartition("/")[2])))
    names = plain, re.sub("vl|omni|text", "", plain, count=1)  # models of images and text are read as those of text
    return max((preset for preset in PRESETS if any(n.startswith(_plain(preset)) for n in names)), key=len, default="")


def fits(family: str, found: Values) -> bool:
    """Return if a file is of a family, by its paths."""
    patterns = _NAMES["paths"][family].split()
    return any(fnmatchcase(path, pattern) for path in found.by_path for pattern in patterns)


def degrees_product(family: str, found: Values) -> int:
    """Return the ranks that the degrees of a file of a family make."""
    return math.prod(found.count(path, 1) for path in _NAMES["degrees"][family].split())


def titan_ranks(found: Values) -> int:
    """Return the ranks that the degrees of a torchtitan file make; the fewest hosts if one degree is all the rest."""
    ranks = degrees_product("torchtitan", found)
    shard = found.count("parallelism.data_parallel_shard_degree")
    return ranks * shard if shard else max(HOST_RANKS, ranks, found.count("parallelism.expert_parallel_degree", 1))


def titan_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the settings of a torchtitan file. Raise MspcError if its model is not known."""
    name, flavor = str(found.value("model.name")).removesuffix("_ft"), str(found.value("model.flavor"))
    preset = published(str(found.value("hf_model"))) or FLAVORS.get((name, flavor), "")
    if not preset and flavor.startswith("debug"):
        experts = found.count("parallelism.expert_parallel_degree", 1) > 1 or "moe" in flavor
        preset = FLAVORS["experts" if experts else "llama3", "debugmodel"]
    if not preset:
        known = ", ".join(f"{model} {size}" for model, size in FLAVORS)
        raise found.wrong("model.flavor", f"is {flavor!r} of {name!r}; known are {known}")
    settings = preset_settings(preset) | _settings("@sharded expert-tensor-parallel-size=1")
    settings |= _settings("use-distributed-optimizer=false overlap-param-gather=false") | _valued("torchtitan", found)
    for path, target in _NAMES["torchtitan"].items():
        if found.count(path):
            settings[target] = found.under(target, path)
    settings |= _settings("sequence-parallel=true", found.count("parallelism.tensor_parallel_degree", 1) > 1)
    mode = found.value("activation_checkpoint.mode") or "selective"
    # Selective checkpoints store the results of every second matmul, close to a full one of every second layer.
    layers = int(settings["num-layers"].value) // 2
    settings |= _settings("@recomputed", mode != "none")
    settings |= _settings(f"recompute-method=block recompute-num-layers={layers}", mode not in ("none", "full"))
    settings |= _precision(" ".join(str(each.value) for path, each in found.by_path.items() if "converters" in path))
    yield from settings.values()


def maxtext_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the settings of a MaxText file. Raise MspcError for a model that is not known."""
    name = str(found.value("model_name") or "default")
    settings = _settings("@usual @half")
    if name != "default":
        preset = published(name)
        if not preset:
            note = "; ".join(did_you_mean(name, list(PRESETS))) or f"known are {', '.join(PRESETS)}"
            raise found.wrong("model_name", f"is {name!r}; {note}")
        settings |= preset_settings(preset)
    for path, target in _NAMES["maxtext"].items():
        if found.count(path) and (name == "default" or target == "seq-length"):
            settings[target] = found.under(target, path)
    settings |= _valued("MaxText", found)
    if name == "default":
        if found.value("decoder_block") == "gemma2":
            layers = "base_num_decoder_layers"
            settings["num-layers"] = found.under("num-layers", layers, 2 * found.count(layers))
        if found.value("attention_type") != "mla":
            settings.pop("kv-lora-rank", None)
        first, shared = "first_num_dense_layers", "shared_experts"
        settings |= _attention_and_experts(settings, found.value(first), found.value(shared))
    for kind, target in _NAMES["maxtext-degrees"].items():
        degrees = [found.value(f"{level}_{kind}_parallelism") for level in ("ici", "dcn")]
        degree = math.prod(each for each in degrees if isinstance(each, int) and each > 0)
        settings[target] = found.under(target, f"ici_{kind}_parallelism", degree)
    # MaxText divides parameters over all other ranks unless a file says otherwise.
    settings |= _settings("@sharded")
    settings.pop("use-distributed-optimizer", None)
    batch = max(1, int(found.value("per_device_batch_size") or 1))
    settings["micro-batch-size"] = found.under("micro-batch-size", "per_device_batch_size", batch)
    settings |= _precision(str(found.value("quantization") or ""))
    yield from settings.values()


def mindformers_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the settings of a mindformers file."""
    settings = _settings("@usual @half")
    for path, setting in found.by_path.items():
        for tail, target in _NAMES["mindformers"].items():
            if (path.endswith("." + tail) or path == tail) and ("model_config" in path or "." in tail):
                settings[target] = Setting(target, setting.value, setting.line, path)
    own = {path.rpartition(".")[2]: each.value for path, each in found.by_path.items() if "model_config" in path}
    wide, more, unit = (own.get(name) for name in ("hidden_size", "ffn_dim_multiplier", "multiple_of"))
    if isinstance(wide, int) and isinstance(more, int | float) and own.get("intermediate_size") is None:
        # The width of LLaMA 2's feed-forward layers, as its own program computes it.
        width, unit = int(4 * wide * (more + 0.01)) * 2 // 3, unit if isinstance(unit, int) and unit > 0 else 256
        settings["ffn-hidden-size"] = Setting("ffn-hidden-size", -(-width // unit) * unit)
    first, shared = "moe_config.first_k_dense_replace", "moe_config.shared_expert_num"
    settings |= _attention_and_experts(settings, found.value(first), found.value(shared))
    settings |= _settings("sequence-parallel=false", found.count("parallel_config.model_parallel", 1) == 1)
    settings |= _valued("mindformers", found)
    data = found.count("parallel_config.data_parallel")
    batch = found.count("runner_config.batch_size", 1) * found.count("parallel_config.micro_batch_num", 1) * (data or 1)
    settings["global-batch-size"] = Setting("global-batch-size", batch)
    yield from settings.values()


def tabled_settings(family: str, found: Values) -> Iterator[Setting]:
    """Yield the settings of a file whose family is read by tables alone."""
    settings = _named(family, found) | _valued(family, found)
    yield from (settings | _attention_and_experts(settings, None, None)).values()


def is_model(found: Values) -> bool:
    """Return if a JSON file is a model's `config.json`."""
    return ("model_type" in found or "architectures" in found.by_path) and bool(_named("hugging-face", found))


def model_settings(found: Values) -> Iterator[Setting]:
    """Yield the sizes of a `config.json`."""
    settings = _named("hugging-face", found)
    settings |= _settings("@usual", found.value("model_type") not in ("gpt2", "gpt_neo", "opt", "bert"))
    settings |= _settings("untie-embeddings-and-output-weights=true", found.value("tie_word_embeddings") is False)
    settings |= _attention_and_experts(settings, found.value("first_k_dense_replace"), found.value("n_shared_experts"))
    yield from settings.values()


def _attention_and_experts(settings: Mapping[str, Setting], dense: Any, shared: Any) -> dict[str, Setting]:
    """Return the settings that follow from a model's sizes: the kind of attention, the layers with experts, all but the
    first `dense` ones, and the width of `shared` experts."""
    kind = "multi-latent-attention" if "kv-lora-rank" in settings else "group-query-attention"
    found = _settings(f"{kind}=true") if {"kv-lora-rank", "num-query-groups"} & settings.keys() else {}
    width, layers = (settings[name].value if name in settings else 0 for name in ("moe-ffn-hidden-size", "num-layers"))
    if dense and isinstance(dense, int) and isinstance(layers, int):
        found |= _settings(f"moe-layer-freq=([0]*{dense}+[1]*{max(0, layers - dense)})")
    if shared and isinstance(shared, int) and isinstance(width, int) and width:
        found |= _settings(f"moe-shared-expert-intermediate-size={shared * width}")
    return found


def deepspeed_ranks(found: Values) -> int:
    """Return the ranks that the batch sizes of a DeepSpeed file make, or those of a host that divide its batch."""
    total, micro = found.count("train_batch_size"), found.count("train_micro_batch_size_per_gpu")
    steps = found.count("gradient_accumulation_steps", 1)
    if total and micro:
        return max(1, total // (micro * steps))
    return largest_divisor(max(1, total // steps), HOST_RANKS) if total else HOST_RANKS


def deepspeed_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the batch, the precision and the sharding of a DeepSpeed file."""
    total, micro = found.count("train_batch_size"), found.count("train_micro_batch_size_per_gpu")
    steps = found.count("gradient_accumulation_steps")
    micro = micro or max(1, (total or ranks) // (ranks * (steps or 1)))
    yield found.under("micro-batch-size", "train_micro_batch_size_per_gpu", micro)
    yield found.under("global-batch-size", "train_batch_size", total or micro * (steps or 1) * ranks)
    yield from _valued("DeepSpeed", found).values()


def recipe_settings(found: Values, ranks: int | None) -> Iterator[Setting]:
    """Yield the settings of a recipe of Megatron-Bridge, such as `llama3_8b_pretrain_8gpu_h100_config`. Raise MspcError
    if its model is not known."""
    name = str(found.value("recipe") or "")
    preset = published(name)
    if not preset and "model.hidden_size" not in found:
        raise MspcError(f"recipe {name!r} is of no published model", notes=[f"known are {', '.join(PRESETS)}"])
    settings = preset_settings(preset) if preset else _settings("@usual @half")
    settings |= _settings("expert-tensor-parallel-size=1", found.count("model.expert_model_parallel_size", 1) > 1)
    for path in found.by_path:
        word = path.rpartition(".")[2]
        target = _NAMES["bridge-words"].get(word, word.replace("_", "-"))
        if target in KNOWN or (path.startswith("model.") and target.startswith(IGNORED_PREFIXES)):
            settings[target] = found.under(target, path)
    if not isinstance(found.value("model.pipeline_model_parallel_layout"), str):
        settings.pop("pipeline-model-parallel-layout", None)
    named = [_plain(str(found.value("mixed_precision"))), *map(_plain, name.split("_"))]
    eight = next((how for key, how in RECIPES.items() if how and _plain(key) in named), "")
    settings |= _settings(f"@recipes {eight}")
    parts = math.prod(found.count(f"model.{word}pipeline_model_parallel_size", 1) for word in ("", "virtual_"))
    if preset and int(settings["num-layers"].value) % parts and "pipeline-model-parallel-layout" not in settings:
        settings |= _settings("@uneven")
    # Megatron-Bridge switches off settings that do not fit together.
    settings.pop("ckpt-format", None)
    for name, other in _NAMES["bridge-needs"].items():
        if other not in settings or settings[other].value in (False, None):
            settings.pop(name, None)
    yield from (setting for setting in settings.values() if setting.value is not None)


def row_settings(row: Mapping[str, Any]) -> Iterator[Setting]:
    """Yield the settings of a row, with Megatron's names. Raise MspcError if its model is not known."""
    found = preset_settings(preset_of(row))
    for column, name in _NAMES["bridge"].items():
        number = first_number(str(row.get(column, "")))
        if number is not None and not (name.startswith("num-virtual") and number == 1):
            found[name] = Setting(name, number, shown=column)
    tensor, stages, chunks = (max(1, first_number(str(row.get(name, ""))) or 1) for name in ("TP", "PP", "VP"))
    found |= _settings("sequence-parallel=true tp-comm-overlap=true expert-tensor-parallel-size=1", tensor > 1)
    found |= _settings("@sharded", is_sharded(row))
    precision = str(row.get("Precision", "")).split(" ")[0] or "FP8-CS"
    if precision not in RECIPES:
        raise MspcError(f"Precision is {precision!r}", notes=[f"it is one of {', '.join(RECIPES)}"])
    found |= _settings(RECIPES[precision])
    found |= {setting.name: setting for setting in _recipe_settings(row, precision, "num-experts" in found)}
    if "w/o MTP" in str(row.get("Model", "")):
        found.pop("mtp-num-layers", None)
    found |= _settings("@uneven", int(found["num-layers"].value) % (stages * chunks) > 0)
    yield from found.values()


def _recipe_settings(row: Mapping[str, Any], precision: str, experts: bool) -> Iterator[Setting]:
    """Yield the settings of a row that its columns do not show: those of its recipe in its release."""
    container = [int(part) for part in str(row.get("container", "")).split(".") if part.isdigit()]
    release = container[0] + container[1] / 100 if len(container) > 1 else 0.0
    if release:
        # The third part of a release's number is a patch; 26.04 is in the middle of those that were published.
        patch = (container[2] if len(container) > 2 else 0) / 36
        yield Setting("software-release", container[0] - 26 + (container[1] - 4) / 12 + patch)
    facts = {"model": preset_of(row), "machine": machine_of_row(row), "precision": precision,
             "task": " ".join((str(row.get("task")), str(row.get("Model")), "FSDP" * is_sharded(row)))}  # fmt: skip
    for recipe in _NAMES["bridge-recipes"]:
        since, until = recipe.get("releases", (0, 99))
        fits = all(re.search(recipe.get(key, ""), fact) for key, fact in facts.items())
        if fits and since <= release < until and (experts or not recipe.get("experts")):
            yield from _settings(recipe["settings"]).values()


def is_sharded(row: Mapping[str, Any]) -> bool:
    """Return if a row divides its parameters."""
    return (first_number(str(row.get("FSDP", ""))) or 0) > 1


def preset_of(row: Mapping[str, Any]) -> str:
    """Return the name of the published model of a row."""
    text = str(row.get("Model") or row.get("section") or "")
    word = re.sub(r"\(.*?\)", "", text).strip().lower().replace("_", "-").replace(" ", "-")
    word = re.sub(r"^(deepseek|kimi)-?", r"\1-", word)
    if word not in PRESETS:
        raise MspcError(f"Model is {text!r}", notes=[f"published models with known sizes: {', '.join(PRESETS)}"])
    return word


def machine_of_row(row: Mapping[str, Any]) -> str:
    """Return the name of the machine of a row, such as "h100"."""
    text = str(row.get("System") or row.get("section") or "")
    return text.lower().removeprefix("dgx-")


def first_number(text: str) -> int | None:
    """Return the first number of a cell such as `64 (0)`, or None for `n/a`."""
    found = re.match(r"\s*(\d+)", text)
    return int(found[1]) if found else None
