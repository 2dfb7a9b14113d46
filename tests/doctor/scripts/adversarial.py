"""Two networks that train against each other, in the spelling of functions."""

import mindspore
from mindspore import nn
from mindspore import ops as F
from mindspore import value_and_grad as vg
from mindspore.common.initializer import Normal, initializer

z = F.standard_normal((128, 100))
noise = mindspore.ops.randn_from_entropy_pool(3)  # lacks mindspore.ops.randn_from_entropy_pool
weights = initializer(Normal(0.02), [3, 4], mindspore.float32)


class Generator(nn.Cell):
    def __init__(self, width=64):
        super().__init__(auto_prefix=True)
        layers = [nn.Conv2dTranspose(width, width, 4, 2, weight_init=Normal(mean=0, sigma=0.02))]
        layers.append(nn.LeakyReLU(alpha=0.2, inplace=True))  # lacks mindspore.nn.LeakyReLU(inplace)
        self.body = nn.SequentialCell(layers)
        self.body.no_method_of_cells()
        for name, cell in self.cells_and_names():
            cell.anything_at_all(name)

    def construct(self, x):
        return F.tanh(self.body(x), inplace=True)  # lacks mindspore.ops.tanh(inplace)


def loss_of(logits):
    return F.binary_cross_entropy_with_logits(
        logits, F.ones_like(logits), F.ones_like(logits), F.ones_like(logits), mean=True  # lacks mindspore.ops.binary_cross_entropy_with_logits(mean)
    )


generator = Generator()
generator.set_grad()
generator.epochs = 3
print(generator.epochs, generator.trainable_params(), generator.untold)
step = vg(loss_of, None, generator.trainable_params(), has_auxiliary=True)  # lacks mindspore.value_and_grad(has_auxiliary)
