"""The transformer of compare.py in mspc; rank 0 prints one line of JSON.

    mpirun -n 4 python benchmarks/gpu/transformer_mspc.py --data 2 --tensor 2
"""

import json

import transformer
import transformer_program

from mspc.communication import get_rank

_, train, x, y = transformer_program.built()
result = transformer.measured(lambda: train(x, y), lambda loss: float(loss.asnumpy()), transformer_program.options)
if get_rank() == 0:
    print(json.dumps(result), flush=True)
