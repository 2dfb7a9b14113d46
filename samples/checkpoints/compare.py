"""This program tells how far two checkpoints are apart, whatever ranks and strategies wrote them.

python compare.py undisturbed/CKP-3_8 checkpoints/CKP-3_8
"""

import sys

import numpy as np

import mspc as ms

first, second = (ms.load_checkpoint(name) for name in sys.argv[1:3])
assert first.keys() == second.keys()
largest = 0.0
for name, value in first.items():
    one, other = value.asnumpy().astype(np.float64), second[name].asnumpy().astype(np.float64)
    largest = max(largest, float(np.abs(one - other).max(initial=0.0)))
print(f"{len(first)} tensors, apart by {largest:.1e} at most")
raise SystemExit(largest > 1e-5)
