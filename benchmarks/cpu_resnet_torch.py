"""The ResNet-50 of cpu_resnet.py in PyTorch, eager: a step, and a line of seconds and loss, for every line it is sent.

    python benchmarks/cpu_resnet_torch.py WEIGHTS.npz BATCH SIZE
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CLASSES = 10


def conv(in_channels, out_channels, kernel_size, stride=1):
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride, kernel_size // 2, bias=False)


class Bottleneck(nn.Module):
    """The block of samples/resnet50_cifar10/resnet.py, under the same names."""

    def __init__(self, in_channels, channels, stride):
        super().__init__()
        out_channels = 4 * channels
        self.conv1, self.bn1 = conv(in_channels, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = conv(channels, out_channels, 1), nn.BatchNorm2d(out_channels)
        self.projected = stride != 1 or in_channels != out_channels
        if self.projected:
            self.project, self.project_bn = conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels)

    def forward(self, x):
        beside = self.project_bn(self.project(x)) if self.projected else x
        out = functional.relu(self.bn1(self.conv1(x)), inplace=True)
        out = functional.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(out))
        out += beside
        return functional.relu(out, inplace=True)


class ResNet50(nn.Module):
    """Images [n, 3, h, w] to scores [n, classes]."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = conv(3, 64, 7, 2), nn.BatchNorm2d(64)
        stages, channels = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for block in range(count):
                stages.append(Bottleneck(channels, 64 << stage, 2 if stage > 0 and block == 0 else 1))
                channels = (64 << stage) * 4
        self.stages = nn.Sequential(*stages)
        self.end_point = nn.Linear(channels, CLASSES)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        return self.end_point(self.stages(x).mean((2, 3)))


NAMES = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}


def same_name(name):
    *path, last = name.split(".")
    return ".".join([*path, NAMES.get(last, last)])


weights, batch, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
net = ResNet50()
with np.load(weights) as given:
    values = {same_name(name): torch.from_numpy(given[name]) for name in given}
missing, unexpected = net.load_state_dict(values, strict=False)
if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
    sys.exit(f"other weights than those of {weights}: {missing}, {unexpected}")
net.train()
optimizer = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9)
random = np.random.default_rng(0)
images = torch.from_numpy(random.standard_normal((batch, 3, size, size)).astype(np.float32))
labels = torch.from_numpy(random.integers(0, CLASSES, batch))
for _ in sys.stdin:
    start = time.perf_counter()
    optimizer.zero_grad()
    loss = functional.cross_entropy(net(images), labels)
    loss.backward()
    optimizer.step()
    found = loss.item()
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": found}), flush=True)
