"""Small models of transformers with weights, for plans that are compared with PyTorch on CPU processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS, ROWS, LENGTH = 64, 8, 16
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 32, "use_cache": False,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SIZES),
    "gpt2": ("GPT2", {
        "vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 8, "attn_pdrop": 0.0,
        "embd_pdrop": 0.0, "resid_pdrop": 0.0, "bos_token_id": None, "eos_token_id": None, "use_cache": False,
    }),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 8, "num_experts_per_tok": 2}),
}  # fmt: skip
"""Classes and settings."""
HEADS = {"GPT2": "GPT2LMHeadModel"}


def export(name: str, folder: Path) -> None:
    """Write model.pt2, module.pt (the module itself) and inputs.npz."""
    import numpy as np
    import torch
    import transformers

    family, settings = MODELS[name]
    torch.manual_seed(0)
    configuration = getattr(transformers, f"{family}Config")(**settings)
    module = getattr(transformers, HEADS.get(family, f"{family}ForCausalLM"))(configuration).train()
    words = torch.randint(0, WORDS, (ROWS, LENGTH))
    exported = torch.export.export(module, (), {"input_ids": words, "labels": words.clone()}, strict=False)
    torch.export.save(exported, folder / "model.pt2")
    torch.save(module, folder / "module.pt")
    np.savez(folder / "inputs.npz", input_ids=words.numpy(), labels=words.numpy())
