"""ConvNeXt, which normalises channels last."""

from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.common.initializer import TruncatedNormal, initializer


class DropPath(nn.Cell):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.keep_prob = 1.0 - drop_prob
        self.dropout = nn.Dropout(p=drop_prob)

    def construct(self, x: Any) -> Any:
        if not self.training:
            return x
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        return self.dropout(ops.ones(shape, x.dtype)) * x


class ConvNextLayerNorm(nn.LayerNorm):
    """Normalises the channels of images [n, c, h, w]."""

    def __init__(self, normalized_shape: tuple[int, ...], epsilon: float) -> None:
        super().__init__(normalized_shape=normalized_shape, epsilon=epsilon)

    def construct(self, input_x: Any) -> Any:
        input_x = ops.transpose(input_x, (0, 2, 3, 1))
        y, _, _ = self.layer_norm(input_x, self.gamma, self.beta)
        return ops.transpose(y, (0, 3, 1, 2))


class ConvNextBlock(nn.Cell):
    def __init__(self, dim: int, drop_path: float = 0.1, layer_scale_init_value: float = 1e-2) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, group=dim, has_bias=True)
        self.norm = nn.LayerNorm((dim,), epsilon=1e-6)
        self.pwconv1 = nn.Dense(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Dense(4 * dim, dim)
        self.gamma_ = Parameter(Tensor(layer_scale_init_value * np.ones(dim), dtype=ms.float32), requires_grad=True)
        self.drop_path = DropPath(drop_path)

    def construct(self, x: Any) -> Any:
        downsample = x
        x = self.dwconv(x)
        x = ops.transpose(x, (0, 2, 3, 1))
        x = self.norm(x)
        x = self.pwconv2(self.act(self.pwconv1(x)))
        x = self.gamma_ * x
        x = ops.transpose(x, (0, 3, 1, 2))
        return downsample + self.drop_path(x)


class ConvNeXt(nn.Cell):
    """Liu et al. 2022."""

    def __init__(self, num_classes: int = 10, drop_path: float = 0.1) -> None:
        super().__init__()
        dims = (8, 16)
        self.downsample = nn.CellList([
            nn.SequentialCell([nn.Conv2d(3, dims[0], kernel_size=4, stride=4, has_bias=True),
                               ConvNextLayerNorm((dims[0],), epsilon=1e-6)]),
            nn.SequentialCell([ConvNextLayerNorm((dims[0],), epsilon=1e-6),
                               nn.Conv2d(dims[0], dims[1], kernel_size=2, stride=2, has_bias=True)]),
        ])  # fmt: skip
        self.stages = nn.CellList([nn.SequentialCell([ConvNextBlock(d, drop_path) for _ in range(2)]) for d in dims])
        self.norm = nn.LayerNorm((dims[-1],), epsilon=1e-6)
        self.head = nn.Dense(dims[-1], num_classes)
        for _, cell in self.cells_and_names():
            if isinstance(cell, (nn.Dense, nn.Conv2d)):
                cell.weight.set_data(initializer(TruncatedNormal(sigma=0.02), cell.weight.shape, cell.weight.dtype))

    def construct(self, x: Any) -> Any:
        for i in range(2):
            x = self.stages[i](self.downsample[i](x))
        x = self.norm(x.mean([-2, -1]))
        return self.head(x)
