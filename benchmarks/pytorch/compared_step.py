"""The loss and all gradients of an exported program on ranks, beside what PyTorch has computed; prints JSON.

    mspc run benchmarks/pytorch/compared_step.py --ranks 8 --simulate -- MODEL.pt2 MODE

MODE is "stand_alone", "semi_auto_parallel" (the batch is sharded, all else follows) or "auto_parallel" (a plan is
searched). Every rank hands its own rows in where there are several.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mindspore as ms
import numpy as np
from mindspore import Tensor

from benchmarks.pytorch.exported import BUFFER, GRADIENT, LOSS
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.reading import read_program
from mspc.readers.pytorch.sizes import with_sizes

MODEL, MODE = Path(sys.argv[1]), sys.argv[2]
EPSILON, ROUNDINGS = {"float32": 2.0**-23, "float64": 2.0**-52}, 16
"""So many rounding errors beside the largest gradient of the network are zero: gradients whose terms cancel, as that of
a bias ahead of a normalisation, are no more than what rounding left."""

data = np.load(MODEL.with_suffix(".npz"))
network = ImportedNetwork(with_sizes(read_program(MODEL), {}), LOSS)
ms.set_context(mode=ms.GRAPH_MODE)
ranks, rank = 1, 0
if MODE != "stand_alone":
    from mindspore.communication import get_group_size, get_rank, init

    init()
    ranks, rank = get_group_size(), get_rank()
    strategy = tuple((ranks, *(1,) * (len(type.shape) - 1)) for type in network.input_types)
    ms.set_auto_parallel_context(parallel_mode=MODE, dataset_strategy=strategy, device_num=ranks)
given = [data[name] for name in network.argument_names]
rows = [Tensor(np.ascontiguousarray(np.split(array, ranks)[rank])) for array in given]
weights = network.trainable_params()
loss, gradients = ms.value_and_grad(network, None, weights)(*rows)


def apart(found: np.ndarray, expected: np.ndarray, zero: float = 0.0) -> float:
    """The largest difference, relative to the largest element; none where both are zero."""
    if not expected.size or max(np.abs(found).max(), np.abs(expected).max()) <= zero:
        return 0.0
    return float(np.abs(found - expected).max() / np.abs(expected).max())


buffers = [each for each in network.get_parameters() if not each.requires_grad and BUFFER + each.name in data.files]
known = [name for name in data.files if name.startswith(GRADIENT)] if rank == 0 else []
epsilon = ROUNDINGS * EPSILON[data[LOSS].dtype.name]
zero = epsilon * max((np.abs(data[name]).max(initial=0.0) for name in known), default=0.0)
compared, changed = {}, {}
for weight, gradient in zip(weights, gradients, strict=True):
    array = gradient.asnumpy()  # on all ranks, which may hold a slice each
    if rank == 0:
        name = GRADIENT + weight.name
        compared[weight.name] = apart(array, data[name] if name in known else np.zeros_like(array), zero)
for each in buffers:
    array = each.asnumpy()
    if rank == 0:
        changed[each.name] = apart(array, data[BUFFER + each.name], epsilon)
if rank == 0:
    worst = max(compared, key=lambda name: compared[name])
    print(json.dumps({
        "loss": apart(loss.asnumpy(), data[LOSS]), "gradient": compared[worst], "worst": worst,
        "buffer": max(changed.values(), default=0.0), "weights": len(weights), "unused": len(weights) - len(known),
    }))
