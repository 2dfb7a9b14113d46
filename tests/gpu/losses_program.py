"""Twenty training steps of two transformer layers; every rank prints its losses.

mpirun -n 4 python -m mspc run tests/gpu/losses_program.py -- 2 2
"""

import sys

import mspc as ms
from mspc.communication import get_rank, init
from tests.gpu.sharded import build

ms.set_context(mode=ms.GRAPH_MODE, gpu_config={"matmul_allow_tf32": True})
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")
init()
step, args = build(int(sys.argv[1]), int(sys.argv[2]))
losses = [step(*args).asnumpy() for _ in range(20)]
print(f"rank {get_rank()}: {' '.join(loss.tobytes().hex() for loss in losses)}", flush=True)
