"""Host and device: a wide table and its update are placed on the host, the deep part on the device."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, context, nn
from mindspore.common.initializer import initializer
from mindspore.communication import init
from mindspore.ops import operations as P

context.set_context(mode=context.GRAPH_MODE, device_target="GPU")
context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", gradients_mean=False, full_batch=True)
init()
ms.set_seed(1)


class WideDeep(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(initializer("normal", [64, 8]), "table")
        self.gather = P.Gather().shard(((8, 1), (1, 1)))
        self.gather.add_prim_attr("primitive_target", "CPU")
        self.deep_embedding = nn.EmbeddingLookup(64, 8, target="DEVICE", slice_mode="table_column_slice")
        self.deep = nn.SequentialCell([nn.Dense(32, 16, activation="relu"), nn.Dense(16, 1)])
        self.reshape, self.reduce_sum = P.Reshape(), P.ReduceSum()

    def construct(self, ids):
        wide = self.reduce_sum(self.gather(self.table, ids, 0), (1, 2))
        return self.deep(self.reshape(self.deep_embedding(ids), (-1, 32))) + self.reshape(wide, (-1, 1))


net = WideDeep()
wide = [p for p in net.trainable_params() if p.name == "table"]
optimizer = nn.LazyAdam([{"params": wide}, {"params": [p for p in net.trainable_params() if p.name != "table"]}], 0.01)
optimizer.target = "CPU"
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.BCEWithLogitsLoss()), optimizer, sens=16.0)
generator = np.random.default_rng(1)
step(Tensor(generator.integers(0, 64, (16, 4)), ms.int32), Tensor(generator.integers(0, 2, (16, 1)), ms.float32))
