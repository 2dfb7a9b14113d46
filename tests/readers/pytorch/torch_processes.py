"""Runs a module as a written plan shards it, on CPU processes of PyTorch: `python torch_processes.py FOLDER RANKS`.

FOLDER has plan.py, module.pt (the module), inputs.npz; losses.json is written there, with the collectives that a
forward pass sends.
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


def work(rank: int, ranks: int, folder: Path) -> None:
    """What one process does: steps of gradient descent."""
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
        with CommDebugMode() as counted:
            loss = module(**inputs)["loss"]
        if not step:
            sent = {str(kind).rpartition(".")[2]: n for kind, n in counted.get_comm_counts().items()}
        loss.backward()
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(float(total) / ranks)
    if not rank:
        (folder / "losses.json").write_text(json.dumps({"losses": losses, "sent": sent}))
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    count = int(sys.argv[2])
    torch.multiprocessing.spawn(work, (count, Path(sys.argv[1])), count)
