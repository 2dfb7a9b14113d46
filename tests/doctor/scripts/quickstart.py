"""A first network, as tutorials begin: nothing lacks."""

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.dataset import MnistDataset, transforms, vision


def datapipe(path: str, batch_size: int):
    images = [vision.Rescale(1.0 / 255.0, 0), vision.Normalize(mean=(0.1307,), std=(0.3081,)), vision.HWC2CHW()]
    dataset = MnistDataset(path)
    dataset = dataset.map(images, "image")
    dataset = dataset.map(transforms.TypeCast(ms.int32), "label")
    return dataset.batch(batch_size)


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.flatten = nn.Flatten()
        self.dense_relu_sequential = nn.SequentialCell(
            nn.Dense(28 * 28, 512), nn.ReLU(), nn.Dense(512, 512), nn.ReLU(), nn.Dense(512, 10)
        )

    def construct(self, x: Tensor):
        x = self.flatten(x)
        return self.dense_relu_sequential(x)


model = Network()
loss_fn = nn.CrossEntropyLoss()
optimizer = nn.SGD(model.trainable_params(), 1e-2)


def forward_fn(data, label):
    logits = model(data)
    return loss_fn(logits, label), logits


grad_fn = ms.value_and_grad(forward_fn, None, optimizer.parameters, has_aux=True)


def train_step(data, label):
    (loss, _), grads = grad_fn(data, label)
    optimizer(grads)
    return loss


for batch, (data, label) in enumerate(datapipe("MNIST_Data/train", 64).create_tuple_iterator()):
    model.set_train()
    loss = train_step(data, label)
    print(batch, loss.asnumpy(), ops.argmax(model(data), 1).shape)
ms.save_checkpoint(model, "model.ckpt")
