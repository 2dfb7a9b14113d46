"""The transformer of pipelines.py in stages of `torch.distributed.pipelining`, one process a stage; rank 0 prints one
line of JSON. Stages are compiled, but for schedules that take a backward part apart, which compiled ones do not allow.
Without GPUs it runs on processes of the CPU, to be tried."""

import json
import os

import torch
import torch.distributed as dist
import transformer
from torch.distributed import pipelining
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

ON_GPU = torch.cuda.is_available()
SCHEDULES = {
    "gpipe": pipelining.ScheduleGPipe,
    "1f1b": pipelining.Schedule1F1B,
    "interleaved": pipelining.ScheduleInterleaved1F1B,
    "zero_bubble_v": pipelining.ScheduleZBVZeroBubble,
}
IN_PARTS = ("zero_bubble_v",)


class Chunk(torch.nn.Module):
    """Layers of one stage, one behind another: micro-batches (batch, sequence, width) in the precision asked for."""

    def __init__(self, layers, sizes, kind):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.ParameterDict({n: torch.nn.Parameter(torch.from_numpy(v)) for n, v in p.items()}) for p in layers
        )
        self.sizes, self.kind = sizes, kind

    def norm(self, x, gamma, beta):
        return layer_norm(x.float(), (self.sizes.width,), gamma, beta, 1e-5).to(self.kind)

    def split(self, x):
        return x.view(*x.shape[:2], self.sizes.heads, self.sizes.head).transpose(1, 2)

    def forward(self, x):
        for p in self.layers:
            w = {name: p[name].to(self.kind) for name in ("wq", "wk", "wv", "wo", "w1", "w2")}
            z = self.norm(x, p["gamma1"], p["beta1"])
            mixed = scaled_dot_product_attention(*(self.split(z @ w[name]) for name in ("wq", "wk", "wv")))
            x = mixed.transpose(1, 2).reshape(x.shape) @ w["wo"] + x
            z = self.norm(x, p["gamma2"], p["beta2"])
            x = gelu(z @ w["w1"], approximate="tanh") @ w["w2"] + x
        return x


def program(rank, sizes, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29513")
    device = torch.device("cuda", rank) if ON_GPU else torch.device("cpu")
    if ON_GPU:
        torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = True
    dist.init_process_group("nccl" if ON_GPU else "gloo", rank=rank, world_size=sizes.stages)
    kind = torch.bfloat16 if sizes.precision == "bf16" else torch.float32
    weights, parts = transformer.weights(sizes), sizes.chunks
    each = sizes.layers // len(parts)
    mine = [k for k, stage in enumerate(parts) if stage == rank]
    chunks = [Chunk(weights[k * each : (k + 1) * each], sizes, kind).to(device) for k in mine]
    compiled = ON_GPU and sizes.schedule not in IN_PARTS
    stages = [
        pipelining.PipelineStage(torch.compile(chunk) if compiled else chunk, k, len(parts), device)
        for k, chunk in zip(mine, chunks, strict=True)
    ]
    schedule = SCHEDULES[sizes.schedule](
        stages if len(parts) > sizes.stages else stages[0], sizes.micro_batches,
        loss_fn=lambda found, wanted: ((found.float() - wanted) ** 2).mean(), scale_grads=False,
    )  # fmt: skip
    flat = [w for chunk in chunks for w in chunk.parameters()]
    optimizer = torch.optim.SGD(flat, lr=sizes.rate, momentum=transformer.MOMENTUM, fused=ON_GPU)
    shape = (sizes.batch, sizes.sequence, sizes.width)
    x, y = (torch.from_numpy(v).view(shape).to(device) for v in transformer.batch(sizes))
    first, last = parts[0] == rank, parts[-1] == rank

    def step():
        optimizer.zero_grad()
        losses = []
        given = (x.to(kind),) if first else ()
        schedule.step(*given, **({"target": y, "losses": losses} if last else {}), return_outputs=False)
        optimizer.step()
        return torch.stack(losses).sum() if last else torch.zeros((), device=device)

    def value(loss):
        total = loss.detach().clone()
        dist.all_reduce(total)
        return float(total)

    result = transformer.measured(step, value, options)
    if rank == 0:
        memory = torch.cuda.max_memory_allocated() if ON_GPU else 0
        print(json.dumps({**result, "compiled": compiled, "memory": memory}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sizes, options = transformer.parsed()
    torch.multiprocessing.spawn(program, (sizes, options), sizes.stages)
