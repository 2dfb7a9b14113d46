"""One program of gpu_step.py: exports a module, or takes steps of it in mspc or in PyTorch when it is told to.

    python -m benchmarks.pytorch.step_program NETWORK export|mspc|torch.compile FILE
        --size gpu --device gpu --dtype bf16 [--mode MODE] [--nothing-dropped]

FILE is the exported program, which `export` writes and `mspc` reads. Of the lines that it reads and prints says
`benchmarks/gpu/networks/program.py`.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from benchmarks.gpu.networks.program import Program, resident, serve

RATE, DECAY = 3e-4, 0.1
OPTIMIZER = f"adamw:lr={RATE},weight_decay={DECAY}"


def exported(options: argparse.Namespace) -> None:
    """Write the program with its weights, and the tensors of a step beside it."""
    import numpy as np
    import torch

    from benchmarks.pytorch.step_modules import made

    module, data = made(options.network, options.size, options.nothing_dropped)
    torch.export.save(torch.export.export(module, (), data, strict=False), options.file)
    np.savez(options.file.with_suffix(".npz"), **{name: value.numpy() for name, value in data.items()})


def in_torch(options: argparse.Namespace) -> Program:
    """The module itself, compiled with its loss; a fused optimizer; halves by autocast."""
    import torch

    from benchmarks.pytorch.step_modules import CHANNELS_LAST, made

    device, allowed = "cuda" if options.device == "gpu" else "cpu", options.dtype != "f32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True
    module, data = made(options.network, options.size, options.nothing_dropped)
    module, last = module.to(device), options.network in CHANNELS_LAST
    if last:
        module = module.to(memory_format=torch.channels_last)
    tensors = {name: value.to(device) for name, value in data.items()}
    if last:
        tensors["images"] = tensors["images"].to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(module.parameters(), RATE, weight_decay=DECAY, fused=True)

    def loss_of() -> Any:
        with torch.autocast(device, torch.bfloat16, enabled=options.dtype == "bf16"):
            return module(**tensors)["loss"]

    forward = torch.compile(loss_of, mode=options.mode)

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        optimizer.step()
        return loss.detach().clone()

    wait = torch.cuda.synchronize if options.device == "gpu" else lambda: None
    peak = torch.cuda.max_memory_allocated if options.device == "gpu" else resident
    return Program(step, float, wait, peak, {name: tuple(each.shape) for name, each in module.named_parameters()})


def in_mspc(options: argparse.Namespace) -> Program:
    """What `mspc compile FILE --optimizer adamw:... --precision bfloat16` compiles, called as a cell."""
    import numpy as np

    import mspc as ms
    from mspc.readers.pytorch.reading import read_program
    from mspc.readers.pytorch.sizes import with_sizes
    from mspc.readers.pytorch.training import Training, compiled_as

    tf32 = {"gpu_config": {"matmul_allow_tf32": options.dtype != "f32"}} if options.device == "gpu" else {}
    ms.set_context(mode=ms.GRAPH_MODE, device_target=options.device.upper(), **tf32)
    ms.set_seed(1)
    training = Training(optimizer=OPTIMIZER, precision="bfloat16" if options.dtype == "bf16" else "")
    step = compiled_as(with_sizes(read_program(options.file), {}), training).network
    arrays = np.load(options.file.with_suffix(".npz"))
    data = [ms.Tensor(arrays[name]) for name in step.argument_names]
    peak = ms.runtime.max_memory_allocated if options.device == "gpu" else resident
    trained = {each.name: each.shape for each in step.get_parameters() if each.requires_grad}
    return Program(lambda: step(*data), lambda loss: float(loss.asnumpy()), ms.runtime.synchronize, peak, trained)


def main() -> None:
    """Export, or build the step and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network")
    parser.add_argument("peer", choices=("export", "mspc", "torch.compile"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--device", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--dtype", choices=("bf16", "tf32", "f32"), required=True)
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--nothing-dropped", action="store_true", help="dropout with a rate of zero")
    options = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if options.peer == "export":
        exported(options)
    else:
        serve((in_mspc if options.peer == "mspc" else in_torch)(options), out)


if __name__ == "__main__":
    main()
