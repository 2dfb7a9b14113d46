"""The ResNet-50 of compare.py in JAX: flax, channels last, one jitted step; images are sharded over the GPUs,
statistics are those of the global batch. It prints one line of JSON."""

import json
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import resnet
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

options = resnet.parsed()
KIND = jnp.bfloat16 if options.precision == "bf16" else jnp.float32
jax.config.update("jax_default_matmul_precision", "default" if options.precision == "bf16" else "tensorfloat32")
normal = partial(nn.BatchNorm, use_running_average=False, momentum=resnet.DECAY, epsilon=1e-5, dtype=KIND)


def conv(channels, length, stride, name):
    return nn.Conv(channels, (length, length), stride, padding=length // 2, use_bias=False, dtype=KIND, name=name)


class Block(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside the input, which is projected where its shape changes."""

    channels: int
    stride: int
    projected: bool

    @nn.compact
    def __call__(self, x):
        y = nn.relu(normal(name="bn1")(conv(self.channels, 1, 1, "conv1")(x)))
        y = nn.relu(normal(name="bn2")(conv(self.channels, 3, self.stride, "conv2")(y)))
        y = normal(name="bn3")(conv(4 * self.channels, 1, 1, "conv3")(y))
        if self.projected:
            x = normal(name="downsample_1")(conv(4 * self.channels, 1, self.stride, "downsample_0")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    """Images [n, h, w, 3] to scores [n, classes]."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(normal(name="bn1")(conv(options.width, 7, 2, "conv1")(x.astype(KIND))))
        x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for stage, count in enumerate(resnet.BLOCKS):
            for block in range(count):
                stride = 2 if stage and not block else 1
                x = Block(options.width << stage, stride, not block, name=f"layer{stage + 1}_{block}")(x)
        return nn.Dense(options.classes, dtype=KIND, name="fc")(x.mean((1, 2))).astype(jnp.float32)


def started(network, shape):
    """Parameters and statistics of the network, with the weights that all programs start from."""
    variables = jax.device_get(network.init(jax.random.key(0), jnp.zeros(shape)))
    parameters = jax.tree.map(np.asarray, variables["params"])
    for name, value in resnet.weights(options).items():
        if name.startswith("fc"):
            parameters["fc"]["kernel" if name == "fc.weight" else "bias"] = value.T
            continue
        home = parameters
        for part in name.replace(".", "_", 1).replace("sample.", "sample_").split("."):
            home = home[part]
        home["kernel"] = value.transpose(2, 3, 1, 0)
    return parameters, variables["batch_stats"]


def main():
    network, optimizer = ResNet(), optax.sgd(resnet.RATE, resnet.MOMENTUM)
    images, classes = resnet.batch(options)
    images = images.transpose(0, 2, 3, 1)
    parameters, statistics = started(network, images[:1].shape)
    mesh = Mesh(np.array(jax.devices()[: options.data]), ("data",))
    sharded, replicated = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    images, classes = (jax.device_put(value, sharded) for value in (images, classes))
    parameters, statistics = (jax.device_put(value, replicated) for value in (parameters, statistics))
    state = jax.device_put(optimizer.init(parameters), replicated)

    def loss_of(parameters, statistics, images, classes):
        scores, changed = network.apply({"params": parameters, "batch_stats": statistics}, images,
                                        mutable=["batch_stats"])  # fmt: skip
        return optax.softmax_cross_entropy_with_integer_labels(scores, classes).mean(), changed["batch_stats"]

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def train(parameters, statistics, state, images, classes):
        (loss, statistics), gradients = jax.value_and_grad(loss_of, has_aux=True)(
            parameters, statistics, images, classes
        )
        changes, state = optimizer.update(gradients, state, parameters)
        return optax.apply_updates(parameters, changes), statistics, state, loss

    held = [parameters, statistics, state]

    def step():
        *held[:], loss = train(*held, images, classes)
        return loss

    print(json.dumps(resnet.measured(step, float, options)), flush=True)


main()
