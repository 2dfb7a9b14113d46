"""Networks that join channels or normalise them last: DenseNet, ConvNeXt."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.common.initializer import TruncatedNormal, initializer


class _DenseLayer(nn.Cell):
    def __init__(self, num_input_features: int, growth_rate: int, bn_size: int, drop_rate: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_input_features)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(num_input_features, bn_size * growth_rate, 1, 1, pad_mode="valid")
        self.norm2 = nn.BatchNorm2d(bn_size * growth_rate)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(bn_size * growth_rate, growth_rate, 3, 1, pad_mode="pad", padding=1)
        self.keep_prob = 1.0 - drop_rate
        self.dropout = nn.Dropout(keep_prob=self.keep_prob)

    def construct(self, features: Any) -> Any:
        bottleneck = self.conv1(self.relu1(self.norm1(features)))
        new_features = self.conv2(self.relu2(self.norm2(bottleneck)))
        if self.keep_prob < 1:
            new_features = self.dropout(new_features)
        return new_features


class _DenseBlock(nn.Cell):
    def __init__(self, num_layers: int, num_input_features: int, bn_size: int, growth_rate: int, drop: float) -> None:
        super().__init__()
        self.cell_list = nn.CellList()
        for i in range(num_layers):
            layer = _DenseLayer(num_input_features + i * growth_rate, growth_rate, bn_size, drop)
            self.cell_list.append(layer)
        self.concate = ops.Concat(axis=1)

    def construct(self, init_features: Any) -> Any:
        features = init_features
        for layer in self.cell_list:
            new_features = layer(features)
            features = self.concate((features, new_features))
        return features


class _Transition(nn.Cell):
    def __init__(self, num_input_features: int, num_output_features: int) -> None:
        super().__init__()
        self.features = nn.SequentialCell(OrderedDict([
            ("norm", nn.BatchNorm2d(num_input_features)),
            ("relu", nn.ReLU()),
            ("conv", nn.Conv2d(num_input_features, num_output_features, 1, 1, pad_mode="valid")),
            ("pool", nn.AvgPool2d(kernel_size=2, stride=2)),
        ]))  # fmt: skip

    def construct(self, x: Any) -> Any:
        return self.features(x)


class DenseNet(nn.Cell):
    """Huang et al. 2017."""

    def __init__(self, num_classes: int = 10, growth_rate: int = 4, drop_rate: float = 0.0) -> None:
        super().__init__()
        layers: Any = OrderedDict()
        layers["conv0"] = nn.Conv2d(3, 8, 7, stride=2, pad_mode="pad", padding=3)
        layers["norm0"] = nn.BatchNorm2d(8)
        layers["relu0"] = nn.ReLU()
        num_features = 8
        for i, num_layers in enumerate((2, 2)):
            layers[f"denseblock{i + 1}"] = _DenseBlock(num_layers, num_features, 2, growth_rate, drop_rate)
            num_features = num_features + num_layers * growth_rate
            if i != 1:
                layers[f"transition{i + 1}"] = _Transition(num_features, num_features // 2)
                num_features = num_features // 2
        layers["norm5"] = nn.BatchNorm2d(num_features)
        layers["relu5"] = nn.ReLU()
        self.features = nn.SequentialCell(layers)
        self.mean = ops.ReduceMean(True)
        self.flatten = nn.Flatten()
        self.classifier = nn.Dense(num_features, num_classes)

    def construct(self, x: Any) -> Any:
        x = self.features(x)
        x = self.mean(x, (2, 3))
        return self.classifier(self.flatten(x))


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
