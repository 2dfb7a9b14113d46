"""A script of three blocks of norm, up and down, which trains with Adam: searches within limits of memory take it."""

_SCRIPT = """
import mindspore as ms
from mindspore import Tensor, nn, ops
class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.act, self.down = nn.LayerNorm((32,)), nn.Dense(32, 128), nn.GELU(), nn.Dense(128, 32)
    def construct(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.blocks = nn.CellList([Block() for _ in range(3)])
    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return ops.reduce_mean(x)
net = Net()
nn.TrainOneStepCell(net, nn.Adam(net.trainable_params()))(Tensor(shape=(ROWS, 32), dtype=ms.float32))
"""


def blocks(rows: int) -> str:
    """The script, for so many rows."""
    return _SCRIPT.replace("ROWS", str(rows))
