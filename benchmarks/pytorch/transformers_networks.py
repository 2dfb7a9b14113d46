"""Small configurations of transformers' architectures: their own classes, with a loss, all dropout 0.

Sizes are set where a configuration has them by one of the usual names; what an architecture calls otherwise stands in
its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

BATCH, LENGTH, VOCABULARY, IMAGE, CLASSES = 8, 16, 96, 32, 4
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "embed_dim": 32,
    "embedding_size": 32, "ffn_hidden_size": 64, "intermediate_size": 64, "d_ff": 64, "ffn_dim": 64, "n_inner": 64,
    "hidden_dim": 64, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_hidden_layers": 2, "n_layer": 2,
    "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "head_dim": 8, "d_kv": 8, "max_position_embeddings": 32, "n_positions": 32,
    "max_seq_len": 32, "image_size": IMAGE, "patch_size": 8, "num_labels": CLASSES, "rotary_dim": 4,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 0, "word_embed_proj_dim": 32,
    "type_vocab_size": 2, "use_cache": False,
}  # fmt: skip
"""What a configuration gets where it has such a setting. Dropout and drop path are turned off by their names."""


class Architecture(NamedTuple):
    """name: the folder in transformers. config, model: its classes. inputs: what it is called with: "causal", "labels"
    (one class a row), "tokens" (a label a token), "sequences" (an encoder and a decoder), "images", "audio".
    settings: beside `SIZES`."""

    name: str
    config: str
    model: str
    inputs: str
    settings: Mapping[str, Any] = MappingProxyType({})


GROUPED = {"num_key_value_heads": 2}
EXPERTS = {
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, **GROUPED,
}  # fmt: skip
STAGES = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}

ARCHITECTURES: tuple[Architecture, ...] = (
    Architecture("gpt2", "GPT2Config", "GPT2LMHeadModel", "causal"),
    Architecture("llama", "LlamaConfig", "LlamaForCausalLM", "causal", GROUPED),
    Architecture("mistral", "MistralConfig", "MistralForCausalLM", "causal", GROUPED),
    Architecture("qwen2", "Qwen2Config", "Qwen2ForCausalLM", "causal", GROUPED),
    Architecture("qwen3", "Qwen3Config", "Qwen3ForCausalLM", "causal", GROUPED),
    Architecture("phi", "PhiConfig", "PhiForCausalLM", "causal"),
    Architecture("phi3", "Phi3Config", "Phi3ForCausalLM", "causal", GROUPED),
    Architecture("gemma", "GemmaConfig", "GemmaForCausalLM", "causal", GROUPED),
    Architecture("gemma2", "Gemma2Config", "Gemma2ForCausalLM", "causal", GROUPED),
    Architecture("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", "causal", GROUPED),
    Architecture("gpt_neo", "GPTNeoConfig", "GPTNeoForCausalLM", "causal", {
        "attention_types": [[["global", "local"], 1]]}),
    Architecture("gpt_neox", "GPTNeoXConfig", "GPTNeoXForCausalLM", "causal"),
    Architecture("gptj", "GPTJConfig", "GPTJForCausalLM", "causal"),
    Architecture("gpt_bigcode", "GPTBigCodeConfig", "GPTBigCodeForCausalLM", "causal"),
    Architecture("codegen", "CodeGenConfig", "CodeGenForCausalLM", "causal"),
    Architecture("opt", "OPTConfig", "OPTForCausalLM", "causal"),
    Architecture("bloom", "BloomConfig", "BloomForCausalLM", "causal"),
    Architecture("falcon", "FalconConfig", "FalconForCausalLM", "causal"),
    Architecture("mpt", "MptConfig", "MptForCausalLM", "causal"),
    Architecture("stablelm", "StableLmConfig", "StableLmForCausalLM", "causal", GROUPED),
    Architecture("starcoder2", "Starcoder2Config", "Starcoder2ForCausalLM", "causal", GROUPED),
    Architecture("olmo", "OlmoConfig", "OlmoForCausalLM", "causal", GROUPED),
    Architecture("olmo2", "Olmo2Config", "Olmo2ForCausalLM", "causal", GROUPED),
    Architecture("cohere", "CohereConfig", "CohereForCausalLM", "causal", GROUPED),
    Architecture("granite", "GraniteConfig", "GraniteForCausalLM", "causal", GROUPED),
    Architecture("glm", "GlmConfig", "GlmForCausalLM", "causal", GROUPED),
    Architecture("smollm3", "SmolLM3Config", "SmolLM3ForCausalLM", "causal", GROUPED),
    Architecture("nemotron", "NemotronConfig", "NemotronForCausalLM", "causal", GROUPED),
    Architecture("mixtral", "MixtralConfig", "MixtralForCausalLM", "causal", EXPERTS),
    Architecture("qwen2_moe", "Qwen2MoeConfig", "Qwen2MoeForCausalLM", "causal", EXPERTS),
    Architecture("qwen3_moe", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", "causal", EXPERTS),
    Architecture("olmoe", "OlmoeConfig", "OlmoeForCausalLM", "causal", EXPERTS),
    Architecture("mamba", "MambaConfig", "MambaForCausalLM", "causal", {"state_size": 4}),
    Architecture("bert", "BertConfig", "BertForMaskedLM", "tokens"),
    Architecture("roberta", "RobertaConfig", "RobertaForSequenceClassification", "labels"),
    Architecture("distilbert", "DistilBertConfig", "DistilBertForMaskedLM", "tokens"),
    Architecture("electra", "ElectraConfig", "ElectraForMaskedLM", "tokens"),
    Architecture("albert", "AlbertConfig", "AlbertForMaskedLM", "tokens"),
    Architecture("deberta", "DebertaConfig", "DebertaForMaskedLM", "tokens"),
    Architecture("mobilebert", "MobileBertConfig", "MobileBertForMaskedLM", "tokens", {
        "true_hidden_size": 32, "intra_bottleneck_size": 32}),
    Architecture("modernbert", "ModernBertConfig", "ModernBertForMaskedLM", "tokens", {"local_attention": 8}),
    Architecture("t5", "T5Config", "T5ForConditionalGeneration", "sequences", {"decoder_start_token_id": 0}),
    Architecture("bart", "BartConfig", "BartForConditionalGeneration", "sequences"),
    Architecture("marian", "MarianConfig", "MarianMTModel", "sequences"),
    Architecture("pegasus", "PegasusConfig", "PegasusForConditionalGeneration", "sequences"),
    Architecture("vit", "ViTConfig", "ViTForImageClassification", "images"),
    Architecture("deit", "DeiTConfig", "DeiTForImageClassification", "images"),
    Architecture("beit", "BeitConfig", "BeitForImageClassification", "images"),
    Architecture("dinov2", "Dinov2Config", "Dinov2ForImageClassification", "images"),
    Architecture("convnext", "ConvNextConfig", "ConvNextForImageClassification", "images", {**STAGES, "patch_size": 4}),
    Architecture("swin", "SwinConfig", "SwinForImageClassification", "images", {
        "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}),
    Architecture("segformer", "SegformerConfig", "SegformerForImageClassification", "images"),
    Architecture("whisper", "WhisperConfig", "WhisperForConditionalGeneration", "audio", {
        "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32}),
)


def built(architecture: Architecture) -> tuple[Any, dict[str, Any]]:
    """The module, in training mode, and the tensors that it is called with."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, architecture.config)
    default = kind()
    settings = {name: value for name, value in SIZES.items() if _takes(kind, default, name, value)}
    settings |= {name: 0.0 for name in vars(default) if _drops(name, getattr(default, name))}
    if architecture.name == "gpt2":
        settings.pop("hidden_size")
    known = kind.attribute_map if hasattr(kind, "attribute_map") else {}
    settings = {name: value for name, value in settings.items() if name not in known} | {
        name: value for name, value in architecture.settings.items()
        if hasattr(default, name) or name == "decoder_start_token_id"
    }
    module = getattr(transformers, architecture.model)(kind(**settings)).train()
    return module, INPUTS[architecture.inputs](torch)


def _takes(kind: Any, default: Any, name: str, value: Any) -> bool:
    """Whether a configuration has a setting of this name that is one number."""
    found = getattr(kind, name, None)
    if (isinstance(found, property) and found.fset is None) or not hasattr(default, name):
        return False
    return not isinstance(getattr(default, name), (list, tuple)) or isinstance(value, (list, tuple))


def _drops(name: str, value: Any) -> bool:
    return isinstance(value, float) and (
        any(part in name for part in ("dropout", "pdrop", "drop_rate", "drop_path", "layerdrop", "dropout_prob"))
    )


def _tokens(torch: Any, least: int = 3) -> Any:
    return torch.randint(least, VOCABULARY, (BATCH, LENGTH))


INPUTS = {
    "causal": lambda torch: dict.fromkeys(("input_ids", "labels"), _tokens(torch)),
    "tokens": lambda torch: {"input_ids": _tokens(torch), "attention_mask": _mask(torch), "labels": _tokens(torch)},
    "labels": lambda torch: {"input_ids": _tokens(torch), "labels": torch.randint(CLASSES, (BATCH,))},
    "sequences": lambda torch: {"input_ids": _tokens(torch), "labels": _tokens(torch)},
    "images": lambda torch: {
        "pixel_values": torch.randn(BATCH, 3, IMAGE, IMAGE), "labels": torch.randint(CLASSES, (BATCH,))},
    "audio": lambda torch: {"input_features": torch.randn(BATCH, 8, 32), "labels": _tokens(torch)},
}


def _mask(torch: Any) -> Any:
    """Rows of different lengths."""
    return (torch.arange(LENGTH)[None] < LENGTH - torch.arange(BATCH)[:, None]).long()
