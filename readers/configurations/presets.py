"""Published models by name, as Megatron's arguments, with the sizes of their technical reports and model cards."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.readers.configurations.settings import Setting

_LLAMA = "swiglu=1 normalization=RMSNorm position-embedding-type=rope disable-bias-linear=1 attention-dropout=0 " \
    "hidden-dropout=0 bf16=1 use-distributed-optimizer=1 overlap-grad-reduce=1 overlap-param-gather=1 " \
    "untie-embeddings-and-output-weights=1 no-create-attention-mask-in-dataloader=1"  # fmt: skip
_GROUPS = _LLAMA + " group-query-attention=1"
_EXPERTS = " moe-grouped-gemm=1 moe-token-dispatcher-type=alltoall moe-permute-fusion=1"
_LATENT = _LLAMA + _EXPERTS + " multi-latent-attention=1 q-lora-rank=1536 kv-lora-rank=512 qk-head-dim=128 " \
    "qk-pos-emb-head-dim=64 v-head-dim=128 hidden-size=7168 ffn-hidden-size=18432 moe-ffn-hidden-size=2048 " \
    "moe-router-topk=8 moe-shared-expert-intermediate-size=2048 num-layers=61"  # fmt: skip
_QWEN = _GROUPS + " num-query-groups=8 kv-channels=128 qk-layernorm=1 vocab-size=151936 seq-length=4096"
_NANO = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"

PRESETS: Mapping[str, str] = MappingProxyType({
    "llama2-7b": _LLAMA + " num-layers=32 hidden-size=4096 num-attention-heads=32 ffn-hidden-size=11008 "
    "vocab-size=32000 seq-length=4096",
    "llama3-8b": _GROUPS + " num-layers=32 hidden-size=4096 num-attention-heads=32 num-query-groups=8 "
    "ffn-hidden-size=14336 vocab-size=128256 seq-length=8192",
    "llama3-70b": _GROUPS + " num-layers=80 hidden-size=8192 num-attention-heads=64 num-query-groups=8 "
    "ffn-hidden-size=28672 vocab-size=128256 seq-length=8192",
    "llama3.1-405b": _GROUPS + " num-layers=126 hidden-size=16384 num-attention-heads=128 num-query-groups=8 "
    "ffn-hidden-size=53248 vocab-size=128256 seq-length=8192",
    "mixtral-8x7b": _GROUPS + _EXPERTS + " num-layers=32 hidden-size=4096 num-attention-heads=32 num-query-groups=8 "
    "ffn-hidden-size=14336 num-experts=8 moe-router-topk=2 vocab-size=32000 seq-length=4096",
    "mixtral-8x22b": _GROUPS + _EXPERTS + " num-layers=56 hidden-size=6144 num-attention-heads=48 num-query-groups=8 "
    "ffn-hidden-size=16384 num-experts=8 moe-router-topk=2 vocab-size=32768 seq-length=4096",
    "llama2-13b": _LLAMA + " num-layers=40 hidden-size=5120 num-attention-heads=40 ffn-hidden-size=13824 "
    "vocab-size=32000 seq-length=4096",
    "llama2-70b": _GROUPS + " num-layers=80 hidden-size=8192 num-attention-heads=64 num-query-groups=8 "
    "ffn-hidden-size=28672 vocab-size=32000 seq-length=4096",
    "llama4-scout": _GROUPS + _EXPERTS + " num-layers=48 hidden-size=5120 num-attention-heads=40 num-query-groups=8 "
    "kv-channels=128 ffn-hidden-size=16384 moe-ffn-hidden-size=8192 num-experts=16 moe-router-topk=1 "
    "moe-shared-expert-intermediate-size=8192 vocab-size=202048 seq-length=8192",
    "llama4-maverick": _GROUPS + _EXPERTS + " num-layers=48 hidden-size=5120 num-attention-heads=40 "
    "num-query-groups=8 kv-channels=128 ffn-hidden-size=16384 moe-ffn-hidden-size=8192 num-experts=128 "
    "moe-router-topk=1 moe-layer-freq=2 moe-shared-expert-intermediate-size=8192 vocab-size=202048 seq-length=8192",
    "mistral-7b": _GROUPS + " num-layers=32 hidden-size=4096 num-attention-heads=32 num-query-groups=8 "
    "ffn-hidden-size=14336 window-size=4096 vocab-size=32000 seq-length=8192",
    "qwen3-0.6b": _QWEN + " num-layers=28 hidden-size=1024 num-attention-heads=16 ffn-hidden-size=3072",
    "qwen3-1.7b": _QWEN + " num-layers=28 hidden-size=2048 num-attention-heads=16 ffn-hidden-size=6144",
    "qwen3-4b": _QWEN + " num-layers=36 hidden-size=2560 num-attention-heads=32 ffn-hidden-size=9728",
    "qwen3-14b": _QWEN + " num-layers=40 hidden-size=5120 num-attention-heads=40 ffn-hidden-size=17408",
    "qwen3-32b": _QWEN + " num-layers=64 hidden-size=5120 num-attention-heads=64 ffn-hidden-size=25600",
    "qwen3-8b": _GROUPS + " num-layers=36 hidden-size=4096 num-attention-heads=32 num-query-groups=8 kv-channels=128 "
    "ffn-hidden-size=12288 qk-layernorm=1 vocab-size=151936 seq-length=4096",
    "qwen3-30b-a3b": _GROUPS + _EXPERTS + " num-layers=48 hidden-size=2048 num-attention-heads=32 num-query-groups=4 "
    "kv-channels=128 ffn-hidden-size=6144 moe-ffn-hidden-size=768 num-experts=128 moe-router-topk=8 qk-layernorm=1 "
    "vocab-size=151936 seq-length=4096",
    "qwen3-235b-a22b": _GROUPS + _EXPERTS + " num-layers=94 hidden-size=4096 num-attention-heads=64 "
    "num-query-groups=4 kv-channels=128 ffn-hidden-size=12288 moe-ffn-hidden-size=1536 num-experts=128 "
    "moe-router-topk=8 qk-layernorm=1 vocab-size=151936 seq-length=4096",
    "gpt-oss-120b": _GROUPS + _EXPERTS + " num-layers=36 hidden-size=2880 num-attention-heads=64 num-query-groups=8 "
    "kv-channels=64 ffn-hidden-size=2880 num-experts=128 moe-router-topk=4 window-size=128 window-attn-skip-freq=2 "
    "vocab-size=201088 seq-length=4096",
    "gpt-oss-20b": _GROUPS + _EXPERTS + " num-layers=24 hidden-size=2880 num-attention-heads=64 num-query-groups=8 "
    "kv-channels=64 ffn-hidden-size=2880 num-experts=32 moe-router-topk=4 window-size=128 window-attn-skip-freq=2 "
    "vocab-size=201088 seq-length=4096",
    "deepseek-v2-lite": _LLAMA + _EXPERTS + " multi-latent-attention=1 kv-lora-rank=512 qk-head-dim=128 "
    "qk-pos-emb-head-dim=64 v-head-dim=128 num-layers=27 hidden-size=2048 num-attention-heads=16 "
    "ffn-hidden-size=10944 moe-ffn-hidden-size=1408 num-experts=64 moe-router-topk=6 "
    "moe-shared-expert-intermediate-size=2816 moe-layer-freq=([0]*1+[1]*26) vocab-size=102400 seq-length=4096",
    "debug-experts": _LLAMA + _EXPERTS + " num-layers=8 hidden-size=256 num-attention-heads=16 num-experts=64 "
    "moe-router-topk=8 moe-ffn-hidden-size=768 vocab-size=2048 seq-length=2048",
    "debug-model": _LLAMA + " num-layers=6 hidden-size=256 num-attention-heads=16 vocab-size=2048 seq-length=2048",
    "deepseek-v3": _LATENT + " num-attention-heads=128 num-experts=256 moe-layer-freq=([0]*3+[1]*58) mtp-num-layers=1 "
    "vocab-size=129280 seq-length=4096",
    "kimi-k2": _LATENT + " num-attention-heads=64 num-experts=384 moe-layer-freq=([0]*1+[1]*60) vocab-size=163840 "
    "seq-length=4096",
    "nemotron-3-nano": _GROUPS + _EXPERTS + f" hybrid-override-pattern={_NANO} num-layers={len(_NANO)} "
    "hidden-size=2688 num-attention-heads=32 num-query-groups=2 kv-channels=128 mamba-num-heads=64 mamba-head-dim=64 "
    "ffn-hidden-size=1856 num-experts=128 moe-router-topk=6 moe-shared-expert-intermediate-size=3712 squared-relu=1 "
    "swiglu=0 vocab-size=131072 seq-length=8192",
})  # fmt: skip
"""Arguments of each model, `name=value`. Sizes: Touvron et al. (LLaMA 2, 2023), Dubey et al. (LLaMA 3, 2024), Meta
(LLaMA 4 model card, 2025), Jiang et al. (Mistral 2023, Mixtral 2024), Yang et al. (Qwen3, 2025), OpenAI (gpt-oss model
card, 2025), DeepSeek-AI (DeepSeek-V2 and V3, 2024), Moonshot AI (Kimi K2, 2025), NVIDIA (Nemotron 3 Nano model card,
2025)."""


def preset_settings(name: str, option: str = "--preset") -> list[Setting]:
    """Return the arguments of a published model. Raise MspcError if there is none of that name."""
    if name not in PRESETS:
        notes = [*did_you_mean(name, list(PRESETS)), f"published models: {', '.join(PRESETS)}"]
        raise MspcError(f"{option} {name}: there is no published model of this name", notes=notes)
    parts = (part.partition("=") for part in PRESETS[name].split())
    return [Setting(key, {"1": True, "0": False}.get(value, value) if key in _SWITCHES else value)
            for key, _, value in parts]  # fmt: skip


_SWITCHES = frozenset((
    "swiglu", "disable-bias-linear", "bf16", "use-distributed-optimizer", "overlap-grad-reduce",
    "overlap-param-gather", "untie-embeddings-and-output-weights", "no-create-attention-mask-in-dataloader",
    "group-query-attention", "moe-grouped-gemm", "moe-permute-fusion", "multi-latent-attention", "qk-layernorm",
    "squared-relu",
))  # fmt: skip
"""Arguments that are switches."""
