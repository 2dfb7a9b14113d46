"""Runs a module as a written plan shards it, on CPU processes of PyTorch: `python torch_processes.py FOLDER RANKS`.

FOLDER has plan.py, module.pt (the module) and inputs.npz. torch.json is written there: the losses of three steps of
gradient descent, and the collectives that the first process sends in the first step, forward and backward, by their
kinds: how many, and how many bytes a ring sends for them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
RATE, STEPS = 0.1, 3
KINDS = {
    "all_reduce": "AllReduce", "allreduce_": "AllReduce", "all_gather_into_tensor": "AllGather",
    "_allgather_base_": "AllGather", "reduce_scatter_tensor": "ReduceScatter", "_reduce_scatter_base_": "ReduceScatter",
    "all_to_all_single": "AlltoAll", "broadcast": "Broadcast",
}  # fmt: skip
"""Collectives of PyTorch as mspc calls them."""


class Sent(CommDebugMode):
    """Counts the bytes of collectives, too."""

    def __enter__(self) -> Sent:
        self.sent: dict[str, list[int]] = {}
        return super().__enter__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = sum(self.get_comm_counts().values())
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if sum(self.get_comm_counts().values()) > before:
            kind = KINDS[func._schema.name.partition("::")[2]]
            each = self.sent.setdefault(kind, [0, 0])
            each[0] += 1
            each[1] += bytes_of(kind, args)
        return found


def bytes_of(kind: str, args: Any) -> int:
    """Return the bytes that one process sends in a ring for the operands of a collective."""
    tensors = [each for value in args for each in (value if isinstance(value, (list, tuple)) else [value])]
    groups = [group_of(value) for value in args]
    parts = next(group.size() for group in groups if group is not None)
    operand = min(each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor))
    if kind == "ReduceScatter":
        operand = max(each.numel() * each.element_size() for each in tensors if isinstance(each, torch.Tensor))
    times = {"AllReduce": 2 / parts, "AllGather": 1.0, "ReduceScatter": 1 / parts, "AlltoAll": 1 / parts}
    return round(operand * times.get(kind, 1.0) * (parts - 1))


def group_of(value: Any) -> Any:
    """The processes that an argument names, if it does."""
    if isinstance(value, str) and value not in ("sum", "avg", "max", "min"):
        return dist.distributed_c10d._resolve_process_group(value)
    if isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(value._type()):
        return dist.ProcessGroup.unbox(value)
    return value if isinstance(value, dist.ProcessGroup) else None


def work(rank: int, ranks: int, folder: Path) -> None:
    """Run one process: steps of gradient descent."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks)
    spec = importlib.util.spec_from_file_location("plan", folder / "plan.py")
    assert spec is not None
    assert spec.loader is not None
    plan = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plan)
    mesh = plan.mesh("cpu")
    module = plan.parallelize(torch.load(folder / "module.pt", weights_only=False), mesh)
    names = mesh.mesh_dim_names
    parts, part = (mesh["dp"].size(), mesh["dp"].get_local_rank()) if "dp" in names else (1, 0)
    inputs: dict[str, Any] = {}
    for name, value in np.load(folder / "inputs.npz").items():
        rows = len(value) // parts
        inputs[name] = torch.from_numpy(value[part * rows : (part + 1) * rows])
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, foreach=False)
    losses, sent = [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        with Sent() as forward:
            loss = module(**inputs)["loss"]
        with Sent() as backward:
            loss.backward()
        if not step:
            sent = {"forward": forward.sent, "backward": backward.sent}
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / ranks)
    if not rank:
        (folder / "torch.json").write_text(json.dumps({"losses": losses, "sent": sent}))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    count = int(sys.argv[2])
    torch.multiprocessing.spawn(work, (count, Path(sys.argv[1]).resolve()), count)
