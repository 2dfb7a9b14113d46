"""The transformer of compare.py in mspc; rank 0 prints one line of JSON.

    mpirun -n 4 python benchmarks/gpu/transformer_mspc.py --data 2 --tensor 2

Of several stages "waited" has what every stage waits for others, in the mean of the steps that are timed, in seconds.
"""

import json

import numpy as np
import transformer
import transformer_program

from mspc.api.call_handler import current
from mspc.communication import get_group_size, get_rank

sizes, train, x, y = transformer_program.built()
counted: list[float] = []


def value(loss):
    """The loss of a step that has ended. Behind the warm-up the time starts in which stages wait."""
    found = float(loss.asnumpy())
    counted.append(executor().waited if sizes.stages > 1 and len(counted) == transformer.WARM_UP - 1 else 0.0)
    return found


def executor():
    """What runs this rank's step."""
    return current().compiled_calls[0].executor


result = transformer.measured(lambda: train(x, y), value, transformer_program.options)
if sizes.stages > 1:
    steps = transformer_program.options.steps * transformer_program.options.repeats
    own = (executor().waited - sum(counted)) / steps
    ranks = tuple(range(get_group_size()))
    result["waited"] = executor().comm.all_gather(np.array([[own]]), ranks, 0)[:, 0].tolist()
if get_rank() == 0:
    print(json.dumps(result), flush=True)
