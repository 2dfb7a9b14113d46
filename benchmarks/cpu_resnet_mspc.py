"""The ResNet-50 of cpu_resnet.py in mspc: a step, and a line of seconds and loss, for every line it is sent.

    python benchmarks/cpu_resnet_mspc.py WEIGHTS.npz BATCH SIZE

The weights that it begins with are written to WEIGHTS.npz before the first line is read.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import mspc as ms
from mspc import Tensor, nn
from mspc.api import alias

alias.install()  # the sample imports mindspore
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "samples" / "resnet50_cifar10"))
from resnet import resnet50  # noqa: E402  # found by the lines above

CLASSES = 10
weights, batch, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_seed(1)
net = resnet50(batch, CLASSES)
np.savez(weights, **{p.name: p.asnumpy() for p in net.get_parameters()})
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
train = nn.TrainOneStepCell(nn.WithLossCell(net, loss), nn.Momentum(net.trainable_params(), 1e-4, 0.9))
train.set_train()
random = np.random.default_rng(0)
images = Tensor(random.standard_normal((batch, 3, size, size)).astype(np.float32))
labels = Tensor(random.integers(0, CLASSES, batch).astype(np.int32))
for _ in sys.stdin:
    start = time.perf_counter()
    found = float(train(images, labels).asnumpy())
    print(json.dumps({"seconds": time.perf_counter() - start, "loss": found}), flush=True)
