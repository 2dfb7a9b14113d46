"""The ResNet-50 of compare.py in mspc; rank 0 prints one line of JSON.

mpirun -n 2 python benchmarks/gpu/resnet_mspc.py --data 2
"""

import importlib.util
import json
import time
from pathlib import Path

import resnet

import mspc as ms
from mspc import Tensor, amp, nn
from mspc import dataset as ds
from mspc.api import alias
from mspc.communication import get_rank, init
from mspc.dataset import vision
from mspc.dataset.transforms import TypeCast

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "resnet50_cifar10" / "resnet.py"


def sample():
    """The module of the sample's network; this folder has a `resnet` of its own."""
    alias.install()
    found = importlib.util.spec_from_file_location("sample_resnet", SAMPLE)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def built(options):
    """(training step, images, classes)."""
    network = sample().ResNet(resnet.BLOCKS, options.classes, options.width)
    values = resnet.weights(options)
    offsets = [sum(resnet.BLOCKS[:stage]) for stage in range(len(resnet.BLOCKS))]
    for name in resnet.convolutions(options.width):
        own = name
        if name.startswith("layer"):
            stage, block, part = name.split(".", 2)
            number = offsets[int(stage.removeprefix("layer")) - 1] + int(block)
            own = f"stages.{number}." + part.replace("downsample.0", "project")
        network.parameters_dict()[f"{own}.weight"].set_data(Tensor(values[name]))
    network.end_point.weight.set_data(Tensor(values["fc.weight"]))
    network.end_point.bias.set_data(Tensor(values["fc.bias"]))
    if options.precision == "bf16":
        network = amp.auto_mixed_precision(network, "O2", dtype=ms.bfloat16)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    optimizer = nn.Momentum(network.trainable_params(), resnet.RATE, resnet.MOMENTUM)
    train = nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer)
    train.set_train()
    return train, *(Tensor(value) for value in resnet.batch(options))


def batches(options):
    """Images and classes from files, epoch after epoch, cropped, flipped, enlarged and normalised by workers."""
    images = ds.Cifar10Dataset(options.folder, "train").shuffle(1000)
    operations = [
        vision.RandomCrop(32, 4), vision.RandomHorizontalFlip(), vision.Resize((options.length, options.length)),
        vision.Rescale(1 / 255, 0.0), vision.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        vision.HWC2CHW(),
    ]  # fmt: skip
    images = images.map(TypeCast(ms.int32), "label")
    images = images.map(operations, "image", num_parallel_workers=options.workers)
    images = images.batch(options.batch, drop_remainder=True)
    while True:
        yield from images.create_tuple_iterator()


def fed(train, options):
    """What `resnet.measured` says of steps on images from files, and the share of the time that steps waited."""
    rows, waited = batches(options), []

    def step():
        begin = time.perf_counter()
        images, classes = next(rows)
        waited.append(time.perf_counter() - begin)
        return train(images, classes)

    result = resnet.measured(step, lambda loss: float(loss.asnumpy()), options)
    timed = options.steps * options.repeats
    return {**result, "waiting": sum(waited[-timed:]) / (options.steps * sum(result["times"]))}


def main():
    options = resnet.parsed()
    ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU", gpu_config={"matmul_allow_tf32": True})
    if options.data > 1:
        ms.set_auto_parallel_context(
            parallel_mode="auto_parallel", dataset_strategy="full_batch", gradients_mean=True,
            gradient_fp32_sync=options.precision != "bf16",
        )  # fmt: skip
    init()
    train, images, classes = built(options)
    if options.folder:
        result = fed(train, options)
    else:
        result = resnet.measured(lambda: train(images, classes), lambda loss: float(loss.asnumpy()), options)
    if get_rank() == 0:
        print(json.dumps(result), flush=True)


main()
