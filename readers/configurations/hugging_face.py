"""Readers of DeepSpeed's JSON, Hugging Face's `config.json` and accelerate's YAML, with Megatron's names of settings.

A DeepSpeed or accelerate file says nothing of the model: its sizes are read from the `config.json` beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mspc.readers.configurations.mistakes import HOST_RANKS, largest_divisor
from mspc.readers.configurations.settings import Setting, Values, tables_of

SIZES = tables_of("trainers")["hugging-face"]
"""Keys of `config.json`, and Megatron's names."""


def is_model(found: Values) -> bool:
    """Return if a JSON file is a model's `config.json`."""
    return ("model_type" in found or "architectures" in found.by_path) and any(name in found for name in SIZES)


def is_deepspeed(found: Values) -> bool:
    """Return if a JSON file is DeepSpeed's."""
    return "train_micro_batch_size_per_gpu" in found or "train_batch_size" in found or any(
        name.startswith("zero_optimization") for name in found.by_path
    )  # fmt: skip


def is_accelerate(found: Values) -> bool:
    """Return if a YAML file is accelerate's."""
    return "distributed_type" in found or "compute_environment" in found


def model_settings(found: Values) -> Iterator[Setting]:
    """Yield the sizes of a `config.json`."""
    kind = str(found.value("model_type") or "")
    for name, setting in found.by_path.items():
        if name in SIZES and setting.value is not None:
            yield Setting(SIZES[name], setting.value, setting.line, name)
    if "kv_lora_rank" in found:
        yield Setting("multi-latent-attention", True)
    elif "num_key_value_heads" in found:
        yield Setting("group-query-attention", True)
    if kind not in ("gpt2", "gpt_neo", "opt", "bert"):
        for name, value in (("swiglu", True), ("normalization", "RMSNorm"), ("position-embedding-type", "rope"),
                            ("disable-bias-linear", True), ("hidden-dropout", 0.0),
                            ("attention-dropout", 0.0), ("moe-grouped-gemm", True)):  # fmt: skip
            yield Setting(name, value)
    if found.value("tie_word_embeddings") is False:
        yield Setting("untie-embeddings-and-output-weights", True)
    if "first_k_dense_replace" in found and "num_hidden_layers" in found:
        dense, layers = found.count("first_k_dense_replace"), found.count("num_hidden_layers")
        yield Setting("moe-layer-freq", f"([0]*{dense}+[1]*{max(0, layers - dense)})")
    if found.value("n_shared_experts") and "moe_intermediate_size" in found:
        width = found.count("n_shared_experts") * found.count("moe_intermediate_size")
        yield found.under("moe-shared-expert-intermediate-size", "n_shared_experts", width)


def deepspeed_ranks(found: Values) -> int:
    """Return the ranks that the batch sizes of a DeepSpeed file make, or those of a host that divide its batch."""
    total, micro = found.count("train_batch_size"), found.count("train_micro_batch_size_per_gpu")
    steps = found.count("gradient_accumulation_steps", 1)
    if total and micro:
        return max(1, total // (micro * steps))
    return largest_divisor(max(1, total // steps), HOST_RANKS) if total else HOST_RANKS


def deepspeed_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the batch, the precision and the sharding of a DeepSpeed file. Raise MspcError if the three batch sizes
    contradict each other, as DeepSpeed does."""
    total, micro = found.count("train_batch_size"), found.count("train_micro_batch_size_per_gpu")
    steps = found.count("gradient_accumulation_steps")
    if total and micro and steps and total != micro * steps * ranks:
        raise found.wrong(
            "train_batch_size", f"is {total}, not train_micro_batch_size_per_gpu {micro} x gradient_accumulation_steps "
            f"{steps} x {ranks} ranks; {micro * steps * ranks} works",
        )  # fmt: skip
    if total and not micro and total % (ranks * (steps or 1)):
        right = -(-total // ranks) * ranks
        raise found.wrong("train_batch_size", f"is {total}, which {ranks} ranks do not divide; {right} works")
    micro = micro or max(1, (total or ranks) // (ranks * (steps or 1)))
    yield found.under("micro-batch-size", "train_micro_batch_size_per_gpu", micro)
    yield found.under("global-batch-size", "train_batch_size", total or micro * (steps or 1) * ranks)
    for name in ("bf16", "fp16"):
        if found.value(f"{name}.enabled") in (True, "auto"):
            yield found.under(name, f"{name}.enabled", True)
    path = "zero_optimization.stage"
    stage = found.value(path) or 0
    yield from zero_settings(found, stage, path)
    if found.value("zero_optimization.offload_optimizer.device") in ("cpu", "nvme"):
        yield found.under("optimizer", "zero_optimization.offload_optimizer.device", "host")
    if found.value("zero_optimization.offload_param.device") in ("cpu", "nvme") and stage != 3:
        raise found.wrong("zero_optimization.offload_param.device", f"needs stage 3, not {stage}")


def zero_settings(found: Values, stage: Any, path: str) -> Iterator[Setting]:
    """Yield the sharding of a stage of ZeRO. Raise MspcError if there is no such stage."""
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise found.wrong(path, f"is {stage!r}; it is 0, 1, 2 or 3")
    if stage:
        strategy = {1: "optim", 2: "optim_grads", 3: "optim_grads_params"}[stage]
        yield found.under("use-megatron-fsdp", path, True)
        yield found.under("data-parallel-sharding-strategy", path, strategy)


STRATEGIES = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0, "HYBRID_SHARD": 3, "4": 3}
"""FSDP's sharding strategies, and the stages of ZeRO that divide the same."""
MEGATRON = {
    "megatron_lm_tp_degree": "tensor-model-parallel-size", "megatron_lm_pp_degree": "pipeline-model-parallel-size",
    "megatron_lm_sequence_parallelism": "sequence-parallel",
    "megatron_lm_use_distributed_optimizer": "use-distributed-optimizer",
}  # fmt: skip
"""Keys of accelerate's section for Megatron-LM."""


def accelerate_settings(found: Values, ranks: int) -> Iterator[Setting]:
    """Yield the ranks, the precision and the sharding of an accelerate file."""
    precision = found.value("mixed_precision")
    if precision in ("bf16", "fp16"):
        yield found.under(precision, "mixed_precision", True)
    if precision == "fp8":
        yield Setting("bf16", True)
        yield found.under("fp8-format", "mixed_precision", "hybrid")
    kind = str(found.value("distributed_type") or "NO")
    if kind == "DEEPSPEED":
        path = "deepspeed_config.zero_stage"
        yield from zero_settings(found, found.value(path) or 0, path)
    elif kind == "FSDP":
        path = "fsdp_config.fsdp_sharding_strategy"
        strategy = str(found.value(path) or "FULL_SHARD")
        if strategy not in STRATEGIES:
            names = ", ".join(name for name in STRATEGIES if not name.isdigit())
            raise found.wrong(path, f"is {strategy!r}; it is one of {names}")
        yield from zero_settings(found, STRATEGIES[strategy], path)
    for path in found.by_path:
        word = path.rpartition(".")[2]
        if word in MEGATRON:
            yield found.under(MEGATRON[word], path)
