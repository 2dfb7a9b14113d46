"""This is the network of `net.py` with its strategies written as Layouts: tensors name the axes of a device mesh.

    mspc compile net_layout.py --ranks 8 --save-graphs
    mspc run net_layout.py --ranks 8

A tuple says only into how many slices a dimension is sharded. A Layout also says which ranks hold which slice, and
one dimension may be sharded by several axes.
"""

import mindspore as ms
import net
from mindspore import Layout, Parameter, nn, ops
from mindspore.common.initializer import initializer


class Network(nn.Cell):
    """image[batch, 1, 28, 28] -> logits[batch, 10]"""

    def __init__(self):
        super().__init__()
        self.flatten = ops.Flatten()
        self.fc1_weight = Parameter(initializer("normal", [28 * 28, 512], ms.float32))
        self.fc2_weight = Parameter(initializer("normal", [512, 512], ms.float32))
        self.fc3_weight = Parameter(initializer("normal", [512, 10], ms.float32))
        cube = Layout((2, 2, 2), ("dp", "sp", "mp"))
        line = Layout((8,), ("tp",))
        # Rows sharded by mp, the inner dimension by sp and then dp: 2 x 4 slices as in net.py, but rank
        # (dp, sp, mp) holds rows mp and columns 2 * sp + dp.
        self.matmul1 = ops.MatMul().shard((cube("mp", ("sp", "dp")), cube(("sp", "dp"), "None")))
        self.relu1 = ops.ReLU().shard(((4, 1),))
        self.matmul2 = ops.MatMul().shard((line("None", "tp"), line("tp", "None")))
        self.relu2 = ops.ReLU().shard(((8, 1),))
        self.matmul3 = ops.MatMul()

    def construct(self, x):
        x = self.flatten(x)
        x = self.relu1(self.matmul1(x, self.fc1_weight))
        x = self.relu2(self.matmul2(x, self.fc2_weight))
        return self.matmul3(x, self.fc3_weight)


if __name__ == "__main__":
    net.train(Network)
