"""The transformer of compare.py in PyTorch: compiled, fused attention, tensor parallel by hand (Megatron's scheme),
gradients of the replicas in one AllReduce; rank 0 prints one line of JSON. It starts its own processes."""

import json
import os

import torch
import torch.distributed as dist
import transformer
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention

COLUMNS, ROWS = ("wq", "wk", "wv", "w1"), ("wo", "w2")


def program(rank, sizes, options):
    torch.cuda.set_device(rank)
    torch.backends.cuda.matmul.allow_tf32 = True
    kind = torch.bfloat16 if sizes.precision == "bf16" else torch.float32
    tensor_rank, data_rank = rank % sizes.tensor, rank // sizes.tensor
    tensor_group = data_group = None
    if sizes.data * sizes.tensor > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
        dist.init_process_group("nccl", rank=rank, world_size=sizes.data * sizes.tensor)
        for d in range(sizes.data):
            group = dist.new_group([d * sizes.tensor + t for t in range(sizes.tensor)])
            tensor_group = group if d == data_rank else tensor_group
        for t in range(sizes.tensor):
            group = dist.new_group([d * sizes.tensor + t for d in range(sizes.data)])
            data_group = group if t == tensor_rank else data_group

    def reduced(x):
        if sizes.tensor == 1:
            return x
        summed = torch.ops._c10d_functional.all_reduce(x.contiguous(), "sum", tensor_group.group_name)
        return torch.ops._c10d_functional.wait_tensor(summed)

    class Copied(torch.autograd.Function):
        """The same on all ranks; gradients are summed."""

        @staticmethod
        def forward(context, x):
            return x.view_as(x)

        @staticmethod
        def backward(context, gradient):
            return reduced(gradient)

    class Summed(torch.autograd.Function):
        """The sum over the ranks; gradients are the same on all."""

        @staticmethod
        def forward(context, x):
            return reduced(x)

        @staticmethod
        def backward(context, gradient):
            return gradient.view_as(gradient)

    copied = Copied.apply if sizes.tensor > 1 else lambda x: x
    summed = Summed.apply if sizes.tensor > 1 else lambda x: x
    heads = sizes.heads // sizes.tensor

    def mine(name, value):
        value = torch.from_numpy(value)
        if name in COLUMNS:
            value = value.chunk(sizes.tensor, 1)[tensor_rank]
        if name in ROWS:
            value = value.chunk(sizes.tensor, 0)[tensor_rank]
        return value.contiguous().cuda().requires_grad_()

    layers = [{n: mine(n, v) for n, v in p.items()} for p in transformer.weights(sizes)]
    flat = [w for p in layers for w in p.values()]
    x, y = (torch.from_numpy(v).cuda() for v in transformer.batch(sizes))
    x, y = (v.view(sizes.batch, sizes.sequence, sizes.width).chunk(sizes.data)[data_rank] for v in (x, y))

    def norm(x, gamma, beta):
        return layer_norm(x.float(), (sizes.width,), gamma, beta, 1e-5).to(kind)

    def split(x):
        return x.view(x.shape[0], sizes.sequence, heads, sizes.head).transpose(1, 2)

    def forward(layers, x, y):
        x = x.to(kind)
        for p in layers:
            w = {name: p[name].to(kind) for name in (*COLUMNS, *ROWS)}
            z = copied(norm(x, p["gamma1"], p["beta1"]))
            mixed = scaled_dot_product_attention(split(z @ w["wq"]), split(z @ w["wk"]), split(z @ w["wv"]))
            x = summed(mixed.transpose(1, 2).reshape(*x.shape[:2], heads * sizes.head) @ w["wo"]) + x
            z = copied(norm(x, p["gamma2"], p["beta2"]))
            x = summed(gelu(z @ w["w1"], approximate="tanh") @ w["w2"]) + x
        return ((x.float() - y) ** 2).mean() / sizes.data

    compiled = torch.compile(forward)
    optimizer = torch.optim.SGD(flat, lr=transformer.RATE, momentum=transformer.MOMENTUM, fused=True)
    joined = torch.zeros(sum(w.numel() for w in flat), device="cuda")
    start = 0
    for w in flat:  # gradients stand side by side, so that one AllReduce takes them all
        w.grad = joined[start : start + w.numel()].view_as(w)
        start += w.numel()

    def step():
        joined.zero_()
        loss = compiled(layers, x, y)
        loss.backward()
        if sizes.data > 1:
            dist.all_reduce(joined, group=data_group)
        optimizer.step()
        return loss.detach()

    def value(loss):
        total = loss.clone()
        if sizes.data > 1:
            dist.all_reduce(total, group=data_group)
        return float(total)

    result = transformer.measured(step, value, options)
    if rank == 0:
        print(json.dumps(result), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    sizes, options = transformer.parsed()
    count = sizes.data * sizes.tensor
    if count == 1:
        program(0, sizes, options)
    else:
        torch.multiprocessing.spawn(program, (sizes, options), count)
