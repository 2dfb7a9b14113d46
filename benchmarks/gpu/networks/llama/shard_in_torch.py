"""Tensor parallel LLaMA in PyTorch, in DTensor's styles; the loss is computed of shared classes."""

from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

surroundings = loss_parallel


def shard(network, mesh):
    column, row = ColwiseParallel(), RowwiseParallel()
    for layer in network.layers:
        plan = {f"attention.{name}": column for name in ("wq", "wk", "wv")} | {"attention.wo": row}
        plan |= {"feed_forward.w1": column, "feed_forward.w3": column, "feed_forward.w2": row}
        parallelize_module(layer, mesh, plan)
        layer.attention.heads //= mesh.size()
        layer.attention.key_heads //= mesh.size()
    parallelize_module(network, mesh, {"output": ColwiseParallel(use_local_output=False)})
