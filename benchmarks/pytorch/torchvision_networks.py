"""torchvision's networks with a loss, for small images; all dropout and stochastic depth 0."""

from __future__ import annotations

from typing import Any

BATCH, CLASSES = 8, 4
IMAGES: dict[str, int] = {
    "convnext_tiny": 64, "densenet121": 32, "efficientnet_b0": 32, "efficientnet_v2_s": 32,
    "googlenet": 64, "inception_v3": 75, "mnasnet0_5": 32, "mobilenet_v2": 32, "mobilenet_v3_large": 32,
    "mobilenet_v3_small": 32, "regnet_x_400mf": 32, "regnet_y_400mf": 32, "resnet18": 32, "resnet50": 64,
    "resnext50_32x4d": 32, "shufflenet_v2_x0_5": 32, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64,
    "VisionTransformer": 32,
}  # fmt: skip
"""The networks, with the height and width of their images."""
SEGMENTATION = {"deeplabv3_resnet50": 64, "fcn_resnet50": 64, "lraspp_mobilenet_v3_large": 64}
"""Those that say a class for every pixel."""
SETTINGS: dict[str, dict[str, Any]] = {
    "googlenet": {"aux_logits": False, "init_weights": False},
    "inception_v3": {"aux_logits": False, "init_weights": False},
    "VisionTransformer": {
        "image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 4, "hidden_dim": 32, "mlp_dim": 64,
    },
}


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """The module, in training mode, and the tensors that it is called with."""
    import torch
    import torchvision

    class WithLoss(torch.nn.Module):
        """A network and the cross entropy of what it gives."""

        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network

        def forward(self, images: Any, labels: Any) -> Any:
            found = self.network(images)
            logits = found["out"] if isinstance(found, dict) else found
            return {"loss": torch.nn.functional.cross_entropy(logits, labels)}

    torch.manual_seed(0)
    settings = dict(SETTINGS.get(name, {}))
    size = (IMAGES | SEGMENTATION)[name]
    makers = torchvision.models.segmentation if name in SEGMENTATION else torchvision.models
    extra = {"weights_backbone": None} if name in SEGMENTATION else {}
    if name[0].islower():  # a function that makes a network, and not its class
        extra["weights"] = None
    network = getattr(makers, name)(num_classes=CLASSES, **extra, **settings).train()
    for module in network.modules():
        if isinstance(module, torch.nn.Dropout | torch.nn.Dropout2d | torchvision.ops.StochasticDepth):
            module.p = 0.0
    shape = (BATCH, size, size) if name in SEGMENTATION else (BATCH,)
    data = {"images": torch.randn(BATCH, 3, size, size), "labels": torch.randint(CLASSES, shape)}
    return WithLoss(network), data
