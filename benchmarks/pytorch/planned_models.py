"""Models of transformers that bring a plan of their own, two layers of a usual width, without weights.

    mspc compile 'benchmarks/pytorch/planned_models.py:make("llama")' --torch --ranks 8 --plan own
"""

from __future__ import annotations

from typing import Any

BATCH, LENGTH = 8, 512
SIZES: dict[str, Any] = {
    "vocab_size": 32000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 1024,
    "num_local_experts": 8, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024,
    "shared_expert_intermediate_size": 1024, "pad_token_id": 0, "attention_dropout": 0.0,
}  # fmt: skip
"""What a configuration gets where it has such a setting."""
MODELS: dict[str, str] = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma", "olmo2": "Olmo2",
    "starcoder2": "Starcoder2", "cohere": "Cohere", "glm": "Glm", "granite": "Granite", "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3Moe",
}  # fmt: skip
"""Classes of models by the names of their folders in transformers."""


def make(name: str) -> tuple[Any, tuple[()], dict[str, Any]]:
    """The model in training mode, and the inputs of an example."""
    import torch
    import transformers

    kind = getattr(transformers, f"{MODELS[name]}Config")
    default = kind()
    settings = {key: value for key, value in SIZES.items() if hasattr(default, key)}
    with torch.device("meta"):
        module = getattr(transformers, f"{MODELS[name]}ForCausalLM")(kind(**settings)).train()
        words = torch.zeros((BATCH, LENGTH), dtype=torch.int64)
    return module, (), {"input_ids": words, "labels": words.clone(), "use_cache": False}
