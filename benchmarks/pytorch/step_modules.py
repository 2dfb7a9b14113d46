"""The modules of gpu_step.py: LLaMA and GPT-2 of transformers, ResNet-50 of torchvision, with their losses.

Sizes are those of `benchmarks/gpu/networks`; of ResNet-50 those of `benchmarks/gpu/resnet.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.gpu.networks.gpt2 import sizes as gpt2_sizes
from benchmarks.gpu.networks.llama import sizes as llama_sizes

SEED = 1
CLASSES = 1000
IMAGES = {"gpu": (64, 224), "cpu": (4, 64)}
"""Of ResNet-50, the rows of a batch and the height and width of its images."""


def _sizes(module: Any, size: str) -> Any:
    return {"gpu": module.GPU, "cpu": module.CPU}[size]


def _words(vocabulary: int, batch: int, length: int) -> dict[str, Any]:
    """Words, which are their own labels: the model moves them by one."""
    import torch

    words = torch.randint(vocabulary, (batch, length))
    return {"input_ids": words, "labels": words.clone()}


def llama(size: str) -> tuple[Any, dict[str, Any]]:
    import transformers

    s = _sizes(llama_sizes, size)
    config = transformers.LlamaConfig(
        vocab_size=s.vocabulary, hidden_size=s.width, intermediate_size=s.hidden, num_hidden_layers=s.layers,
        num_attention_heads=s.heads, num_key_value_heads=s.key_heads, max_position_embeddings=s.length,
        use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), _words(s.vocabulary, s.batch, s.length)


def gpt2(size: str) -> tuple[Any, dict[str, Any]]:
    import transformers

    s = _sizes(gpt2_sizes, size)
    config = transformers.GPT2Config(
        vocab_size=s.vocabulary, n_positions=s.length, n_embd=s.width, n_layer=s.layers, n_head=s.heads,
        embd_pdrop=s.dropout, attn_pdrop=s.dropout, resid_pdrop=s.dropout, use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), _words(s.vocabulary, s.batch, s.length)


def resnet50(size: str) -> tuple[Any, dict[str, Any]]:
    import torch
    import torchvision

    class WithLoss(torch.nn.Module):
        """A network and the cross entropy of what it gives."""

        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Any, labels: Any) -> Any:
            return {"loss": torch.nn.functional.cross_entropy(self.network(images), labels)}

    batch, side = IMAGES[size]
    data = {"images": torch.randn(batch, 3, side, side), "labels": torch.randint(CLASSES, (batch,))}
    return WithLoss(torchvision.models.resnet50(weights=None, num_classes=CLASSES)), data


MODULES: dict[str, Callable[[str], tuple[Any, dict[str, Any]]]] = {"llama": llama, "gpt2": gpt2, "resnet50": resnet50}
CHANNELS_LAST = frozenset({"resnet50"})
"""Those whose images PyTorch keeps with their channels last."""


def made(name: str, size: str, nothing_dropped: bool) -> tuple[Any, dict[str, Any]]:
    """A module in training mode and the tensors that it is called with: the same in every process."""
    import torch

    torch.manual_seed(SEED)
    module, data = MODULES[name](size)
    for each in module.modules():
        if nothing_dropped and isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    return module.train(), data
