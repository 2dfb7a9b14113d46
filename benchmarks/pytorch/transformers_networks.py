"""Small configurations of transformers' architectures: their own classes, with a loss, all dropout 0.

Sizes are set where a configuration has them by one of the usual names; what an architecture calls otherwise stands in
its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

BATCH, LENGTH, VOCABULARY, IMAGE, CLASSES, SAMPLES = 8, 16, 96, 32, 4, 256
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
    (one class a row), "tokens" (a label a token), "sequences" (an encoder and a decoder), "images", "audio",
    "speech". settings: beside `SIZES`. dtype: in which it is compared."""

    name: str
    config: str
    model: str
    inputs: str
    settings: Mapping[str, Any] = MappingProxyType({})
    dtype: str = "float32"


GROUPED = {"num_key_value_heads": 2}
EXPERTS = {
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, **GROUPED,
}  # fmt: skip
ROUTED = {**EXPERTS, "n_routed_experts": 4, "topk_group": 1, "n_group": 1, "first_k_dense_replace": 1}
START = {"decoder_start_token_id": 0}
SPEECH = {
    "num_feat_extract_layers": 2, "conv_dim": (8, 8), "conv_kernel": (4, 4), "conv_stride": (2, 2),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "apply_spec_augment": False,
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
    Architecture("arcee", "ArceeConfig", "ArceeForCausalLM", "causal", GROUPED),
    Architecture("big_bird", "BigBirdConfig", "BigBirdForMaskedLM", "tokens"),
    Architecture("bigbird_pegasus", "BigBirdPegasusConfig", "BigBirdPegasusForConditionalGeneration", "sequences",
        START),
    Architecture("biogpt", "BioGptConfig", "BioGptForCausalLM", "causal"),
    Architecture("bitnet", "BitNetConfig", "BitNetForCausalLM", "causal", GROUPED),
    Architecture("blenderbot", "BlenderbotConfig", "BlenderbotForConditionalGeneration", "sequences", START),
    Architecture("blenderbot_small", "BlenderbotSmallConfig", "BlenderbotSmallForConditionalGeneration",
        "sequences", START),
    Architecture("camembert", "CamembertConfig", "CamembertForMaskedLM", "tokens"),
    Architecture("cohere2", "Cohere2Config", "Cohere2ForCausalLM", "causal", GROUPED),
    Architecture("convbert", "ConvBertConfig", "ConvBertForMaskedLM", "tokens"),
    Architecture("ctrl", "CTRLConfig", "CTRLLMHeadModel", "causal"),
    Architecture("data2vec-text", "Data2VecTextConfig", "Data2VecTextForMaskedLM", "tokens"),
    Architecture("data2vec-vision", "Data2VecVisionConfig", "Data2VecVisionForImageClassification", "images"),
    Architecture("deberta_v2", "DebertaV2Config", "DebertaV2ForMaskedLM", "tokens"),
    Architecture("deepseek_v3", "DeepseekV3Config", "DeepseekV3ForCausalLM", "causal", {
        "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32, "num_key_value_heads": 4, "n_routed_experts": 4, "q_lora_rank": 16,
        "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "first_k_dense_replace": 1, "topk_group": 1, "n_group": 1}),
    Architecture("dinov2_with_registers", "Dinov2WithRegistersConfig", "Dinov2WithRegistersForImageClassification",
        "images"),
    Architecture("ernie", "ErnieConfig", "ErnieForMaskedLM", "tokens"),
    Architecture("ernie4_5", "Ernie4_5Config", "Ernie4_5ForCausalLM", "causal", GROUPED),
    Architecture("ernie4_5_moe", "Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM", "causal", {
        **EXPERTS, "moe_num_experts": 4, "moe_k": 2}),
    Architecture("esm", "EsmConfig", "EsmForMaskedLM", "tokens"),
    Architecture("eurobert", "EuroBertConfig", "EuroBertForMaskedLM", "tokens", GROUPED),
    Architecture("exaone4", "Exaone4Config", "Exaone4ForCausalLM", "causal", GROUPED),
    Architecture("falcon_mamba", "FalconMambaConfig", "FalconMambaForCausalLM", "causal", {
        "state_size": 4}),
    Architecture("flex_olmo", "FlexOlmoConfig", "FlexOlmoForCausalLM", "causal", EXPERTS),
    Architecture("fnet", "FNetConfig", "FNetForMaskedLM", "tokens"),
    Architecture("focalnet", "FocalNetConfig", "FocalNetForImageClassification", "images"),
    Architecture("glm4", "Glm4Config", "Glm4ForCausalLM", "causal", GROUPED),
    Architecture("glm4_moe", "Glm4MoeConfig", "Glm4MoeForCausalLM", "causal", ROUTED),
    Architecture("gpt_oss", "GptOssConfig", "GptOssForCausalLM", "causal", EXPERTS),
    Architecture("granitemoe", "GraniteMoeConfig", "GraniteMoeForCausalLM", "causal", EXPERTS),
    Architecture("granitemoeshared", "GraniteMoeSharedConfig", "GraniteMoeSharedForCausalLM", "causal", EXPERTS),
    Architecture("helium", "HeliumConfig", "HeliumForCausalLM", "causal", GROUPED),
    Architecture("hubert", "HubertConfig", "HubertForSequenceClassification", "speech", SPEECH),
    Architecture("hunyuan_v1_dense", "HunYuanDenseV1Config", "HunYuanDenseV1ForCausalLM", "causal", GROUPED),
    Architecture("ijepa", "IJepaConfig", "IJepaForImageClassification", "images"),
    Architecture("layoutlm", "LayoutLMConfig", "LayoutLMForMaskedLM", "tokens"),
    Architecture("lfm2", "Lfm2Config", "Lfm2ForCausalLM", "causal", GROUPED),
    Architecture("llama4", "Llama4TextConfig", "Llama4ForCausalLM", "causal", EXPERTS),
    Architecture("mamba2", "Mamba2Config", "Mamba2ForCausalLM", "causal", {
        "num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8, "chunk_size": 8}),
    Architecture("mbart", "MBartConfig", "MBartForConditionalGeneration", "sequences", START),
    Architecture("megatron_bert", "MegatronBertConfig", "MegatronBertForMaskedLM", "tokens"),
    Architecture("minimax", "MiniMaxConfig", "MiniMaxForCausalLM", "causal", EXPERTS),
    Architecture("ministral", "MinistralConfig", "MinistralForCausalLM", "causal", GROUPED),
    Architecture("mpnet", "MPNetConfig", "MPNetForMaskedLM", "tokens"),
    Architecture("mra", "MraConfig", "MraForMaskedLM", "tokens"),
    Architecture("mt5", "MT5Config", "MT5ForConditionalGeneration", "sequences", START),
    Architecture("nanochat", "NanoChatConfig", "NanoChatForCausalLM", "causal", GROUPED),
    Architecture("nystromformer", "NystromformerConfig", "NystromformerForMaskedLM", "tokens"),
    Architecture("olmo3", "Olmo3Config", "Olmo3ForCausalLM", "causal", GROUPED),
    Architecture("openai-gpt", "OpenAIGPTConfig", "OpenAIGPTLMHeadModel", "causal"),
    Architecture("pegasus_x", "PegasusXConfig", "PegasusXForConditionalGeneration", "sequences", START),
    Architecture("persimmon", "PersimmonConfig", "PersimmonForCausalLM", "causal"),
    Architecture("plbart", "PLBartConfig", "PLBartForConditionalGeneration", "sequences", START),
    Architecture("poolformer", "PoolFormerConfig", "PoolFormerForImageClassification", "images"),
    Architecture("pvt", "PvtConfig", "PvtForImageClassification", "images"),
    Architecture("pvt_v2", "PvtV2Config", "PvtV2ForImageClassification", "images"),
    Architecture("rembert", "RemBertConfig", "RemBertForMaskedLM", "tokens"),
    Architecture("roberta_prelayernorm", "RobertaPreLayerNormConfig", "RobertaPreLayerNormForMaskedLM", "tokens"),
    Architecture("roc_bert", "RoCBertConfig", "RoCBertForMaskedLM", "tokens"),
    Architecture("roformer", "RoFormerConfig", "RoFormerForMaskedLM", "tokens"),
    Architecture("rwkv", "RwkvConfig", "RwkvForCausalLM", "causal"),
    Architecture("seed_oss", "SeedOssConfig", "SeedOssForCausalLM", "causal", GROUPED),
    Architecture("sew", "SEWConfig", "SEWForSequenceClassification", "speech", SPEECH),
    Architecture("squeezebert", "SqueezeBertConfig", "SqueezeBertForMaskedLM", "tokens"),
    Architecture("umt5", "UMT5Config", "UMT5ForConditionalGeneration", "sequences", START),
    Architecture("unispeech", "UniSpeechConfig", "UniSpeechForSequenceClassification", "speech", SPEECH),
    Architecture("vaultgemma", "VaultGemmaConfig", "VaultGemmaForCausalLM", "causal", GROUPED),
    Architecture("vit_msn", "ViTMSNConfig", "ViTMSNForImageClassification", "images"),
    Architecture("wav2vec2", "Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", "speech", SPEECH),
    Architecture("wav2vec2_conformer", "Wav2Vec2ConformerConfig", "Wav2Vec2ConformerForSequenceClassification",
        "speech", SPEECH),
    Architecture("wavlm", "WavLMConfig", "WavLMForSequenceClassification", "speech", SPEECH, "float64"),
    Architecture("xglm", "XGLMConfig", "XGLMForCausalLM", "causal"),
    Architecture("xlm_roberta", "XLMRobertaConfig", "XLMRobertaForMaskedLM", "tokens"),
    Architecture("m2m_100", "M2M100Config", "M2M100ForConditionalGeneration", "sequences", START),
    Architecture("bert_generation", "BertGenerationConfig", "BertGenerationDecoder", "causal"),
    Architecture("cohere2_moe", "Cohere2MoeConfig", "Cohere2MoeForCausalLM", "causal", ROUTED),
    Architecture("cwm", "CwmConfig", "CwmForCausalLM", "causal", GROUPED),
    Architecture("exaone_moe", "ExaoneMoeConfig", "ExaoneMoeForCausalLM", "causal", ROUTED),
    Architecture("gpt_neox_japanese", "GPTNeoXJapaneseConfig", "GPTNeoXJapaneseForCausalLM", "causal"),
    Architecture("hunyuan_v1_moe", "HunYuanMoEV1Config", "HunYuanMoEV1ForCausalLM", "causal", ROUTED),
    Architecture("hy_v3", "HYV3Config", "HYV3ForCausalLM", "causal", ROUTED),
    Architecture("jais2", "Jais2Config", "Jais2ForCausalLM", "causal", GROUPED),
    Architecture("mellum", "MellumConfig", "MellumForCausalLM", "causal", ROUTED),
    Architecture("minimax_m2", "MiniMaxM2Config", "MiniMaxM2ForCausalLM", "causal", ROUTED),
    Architecture("ministral3", "Ministral3Config", "Ministral3ForCausalLM", "causal", ROUTED),
    Architecture("modernbert-decoder", "ModernBertDecoderConfig", "ModernBertDecoderForCausalLM", "causal", ROUTED),
    Architecture("diffllama", "DiffLlamaConfig", "DiffLlamaForCausalLM", "causal", GROUPED, "float64"),
    Architecture("doge", "DogeConfig", "DogeForCausalLM", "causal", GROUPED, "float64"),
    Architecture("cvt", "CvtConfig", "CvtForImageClassification", "images", dtype="float64"),
    Architecture("mobilevit", "MobileViTConfig", "MobileViTForImageClassification", "images", dtype="float64"),
    Architecture("resnet", "ResNetConfig", "ResNetForImageClassification", "images", dtype="float64"),
    Architecture("regnet", "RegNetConfig", "RegNetForImageClassification", "images", dtype="float64"),
    Architecture("swiftformer", "SwiftFormerConfig", "SwiftFormerForImageClassification", "images", dtype="float64"),
    Architecture("textnet", "TextNetConfig", "TextNetForImageClassification", "images", dtype="float64"),
    Architecture("mobilenet_v1", "MobileNetV1Config", "MobileNetV1ForImageClassification", "images", dtype="float64"),
    Architecture("mobilenet_v2", "MobileNetV2Config", "MobileNetV2ForImageClassification", "images", dtype="float64"),
    Architecture("bit", "BitConfig", "BitForImageClassification", "images", dtype="float64"),
)


def built(architecture: Architecture) -> tuple[Any, dict[str, Any]]:
    """The module, in training mode, and the tensors that it is called with."""
    import torch
    import transformers

    torch.manual_seed(0)
    kind = getattr(transformers, architecture.config)
    default = kind()
    settings = {name: value for name, value in SIZES.items() if _takes(kind, default, name, value)}
    settings |= {
        name: [0.0] * len(value) if isinstance(value, (list, tuple)) else 0.0
        for name, value in vars(default).items() if _drops(name, value)
    }
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
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, float) and (
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
    "speech": lambda torch: {
        "input_values": torch.randn(BATCH, SAMPLES), "labels": torch.randint(CLASSES, (BATCH,))},
    "audio": lambda torch: {"input_features": torch.randn(BATCH, 8, 32), "labels": _tokens(torch)},
}


def _mask(torch: Any) -> Any:
    """Rows of different lengths."""
    return (torch.arange(LENGTH)[None] < LENGTH - torch.arange(BATCH)[:, None]).long()
