"""One of the networks of benchmarks/gpu/networks, trained some steps; prints a step's seconds and bytes as JSON.

    mspc run benchmarks/networks/named.py --device gpu -- gpt2 [STEPS [DTYPE [SIZE]]]

DTYPE is "bf16", "tf32" or "f32", SIZE "gpu" or "cpu". Asked by estimates.py.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.gpu.networks import steps_in_mspc
from benchmarks.gpu.networks.program import Task
from benchmarks.gpu.networks.sizes import sizes_of

NETWORK, STEPS, DTYPE, SIZE = (*sys.argv[1:], *("gpt2", "20", "bf16", "gpu")[len(sys.argv) - 1 :])
WARM, REPEATS = 5, 3

network, sizes = sizes_of(NETWORK, SIZE)
device = "gpu" if SIZE == "gpu" else "cpu"
program = steps_in_mspc.built(Task(NETWORK, sizes, network.data(sizes), network.optimizer, device, DTYPE, ""))
times, steps = [], max(1, int(STEPS) // REPEATS)
for _ in range(WARM):
    program.step()
program.wait()
for _ in range(REPEATS):
    begin = time.perf_counter()
    for _ in range(steps):
        loss = program.step()
    program.wait()
    times.append((time.perf_counter() - begin) / steps)
found = {"seconds": sorted(times)[REPEATS // 2], "memory": program.peak(), "loss": program.value(loss)}
print(json.dumps(found), flush=True)
