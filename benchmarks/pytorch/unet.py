"""A small U-Net of a diffusion model: residual blocks that know the time step, attention to the image and to a text,
halves and doubles of the image, and what each half hands over to its double."""

from __future__ import annotations

import math
from typing import Any

BATCH, SIZE, CHANNELS, TEXT, WORDS, STEPS = 8, 16, (16, 32), 24, 6, 1000


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """The module, in training mode, and the tensors that it is called with: the loss is that of predicted noise."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Residual(nn.Module):
        """Two convolutions, with the time step added between them."""

        def __init__(self, inside: int, outside: int, time: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.GroupNorm(8, inside), nn.GroupNorm(8, outside)
            self.conv1, self.conv2 = (nn.Conv2d(n, outside, 3, padding=1) for n in (inside, outside))
            self.time = nn.Linear(time, outside)
            self.shortcut = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

        def forward(self, x: Any, time: Any) -> Any:
            hidden = self.conv1(functional.silu(self.norm1(x)))
            hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
            return self.shortcut(x) + self.conv2(functional.silu(self.norm2(hidden)))

    class Attention(nn.Module):
        """Attention of the places of an image to each other, or to the words of a text."""

        def __init__(self, width: int, other: int) -> None:
            super().__init__()
            self.heads = 4
            self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width)
            self.key, self.value = nn.Linear(other, width, bias=False), nn.Linear(other, width, bias=False)

        def forward(self, x: Any, other: Any) -> Any:
            rows, places, width = x.shape
            query, key, value = (
                each.view(rows, -1, self.heads, width // self.heads).transpose(1, 2)
                for each in (self.query(x), self.key(other), self.value(other))
            )
            found = functional.scaled_dot_product_attention(query, key, value)
            return self.out(found.transpose(1, 2).reshape(rows, places, width))

    class Transformer(nn.Module):
        """Attention and a gated layer over the places of an image."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(8, width)
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
            self.own, self.text = Attention(width, width), Attention(width, TEXT)
            self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any, text: Any) -> Any:
            rows, width, height, across = x.shape
            places = self.norm(x).permute(0, 2, 3, 1).reshape(rows, height * across, width)
            normed = self.norms[0](places)
            places = places + self.own(normed, normed)
            places = places + self.text(self.norms[1](places), text)
            hidden, gate = self.up(self.norms[2](places)).chunk(2, dim=-1)
            places = places + self.down(hidden * functional.gelu(gate))
            return x + places.reshape(rows, height, across, width).permute(0, 3, 1, 2).contiguous()

    class UNet(nn.Module):
        """The network."""

        def __init__(self) -> None:
            super().__init__()
            first, second = CHANNELS
            time = 4 * first
            self.width = first
            self.time = nn.Sequential(nn.Linear(first, time), nn.SiLU(), nn.Linear(time, time))
            self.enter = nn.Conv2d(4, first, 3, padding=1)
            self.down1, self.down2 = Residual(first, first, time), Residual(first, second, time)
            self.smaller = nn.Conv2d(first, first, 3, stride=2, padding=1)
            self.middle, self.attention = Residual(second, second, time), Transformer(second)
            self.up1, self.up2 = Residual(2 * second, second, time), Residual(second + first, first, time)
            self.larger = nn.Conv2d(second, second, 3, padding=1)
            self.norm, self.leave = nn.GroupNorm(8, first), nn.Conv2d(first, 4, 3, padding=1)

        def forward(self, noisy: Any, steps: Any, text: Any, noise: Any) -> Any:
            half = self.width // 2
            rates = torch.exp(-math.log(10000) * torch.arange(half, device=noisy.device) / half).to(noisy.dtype)
            angles = steps[:, None].to(noisy.dtype) * rates[None]
            time = self.time(torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1))
            x = self.enter(noisy)
            wide = self.down1(x, time)
            narrow = self.down2(self.smaller(wide), time)
            x = self.attention(self.middle(narrow, time), text)
            x = self.up1(torch.cat([x, narrow], dim=1), time)
            x = self.larger(functional.interpolate(x, scale_factor=2.0, mode="nearest"))
            x = self.up2(torch.cat([x, wide], dim=1), time)
            found = self.leave(functional.silu(self.norm(x)))
            return {"loss": functional.mse_loss(found, noise)}

    torch.manual_seed(0)
    data = {
        "noisy": torch.randn(BATCH, 4, SIZE, SIZE), "steps": torch.randint(STEPS, (BATCH,)),
        "text": torch.randn(BATCH, WORDS, TEXT), "noise": torch.randn(BATCH, 4, SIZE, SIZE),
    }  # fmt: skip
    return UNet().train(), data
