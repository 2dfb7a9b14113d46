"""The ResNet-50 of compare.py in PyTorch: torchvision's network, channels last, compiled, with CUDA graphs where one
GPU runs it; rank 0 prints one line of JSON. It starts its own processes; statistics are those of each GPU's batch."""

import json
import os

import resnet
import torch
import torch.distributed as dist
import torchvision


def program(rank, options):
    torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    if options.data > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
        dist.init_process_group("nccl", rank=rank, world_size=options.data)
    network = torchvision.models.resnet50(num_classes=options.classes, width_per_group=options.width)
    values = {name: torch.from_numpy(value) for name, value in resnet.weights(options).items()}
    state = {name if name.startswith("fc") else f"{name}.weight": value for name, value in values.items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not unexpected
    assert all("bn" in name or "downsample.1" in name for name in missing)
    network = network.cuda().to(memory_format=torch.channels_last)
    parameters = list(network.parameters())
    if options.data > 1:
        network = torch.nn.parallel.DistributedDataParallel(network, device_ids=[rank])
    images, classes = (torch.from_numpy(value).chunk(options.data)[rank].cuda() for value in resnet.batch(options))
    images, classes = images.to(memory_format=torch.channels_last), classes.long()
    optimizer = torch.optim.SGD(parameters, lr=resnet.RATE, momentum=resnet.MOMENTUM, fused=True)
    half = options.precision == "bf16"

    def forward(images, classes):
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            return torch.nn.functional.cross_entropy(network(images).float(), classes)

    compiled = torch.compile(forward, mode="reduce-overhead" if options.data == 1 else "default")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = compiled(images, classes)
        loss.backward()
        optimizer.step()
        return loss.detach().clone()

    def value(loss):
        if options.data > 1:
            dist.all_reduce(loss)
        return float(loss) / options.data

    result = resnet.measured(step, value, options)
    if rank == 0:
        print(json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    options = resnet.parsed()
    if options.data == 1:
        program(0, options)
    else:
        torch.multiprocessing.spawn(program, (options,), options.data)
