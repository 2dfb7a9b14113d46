"""Random training steps of PyTorch on ranks are proved equal to one device."""


import pytest

pytest.importorskip("torch")
FIRST = (15, 20, 4, 5, 0, 1)
"""One of every way: gradients that tensor parallelism leaves as parts of sums, and accumulated gradients in HSDP."""
SEEDS = (*FIRST, *(seed for seed in range(48) if seed not in FIRST))


