"""The backend on which kernels of operator tests run."""

from typing import Any

import numpy as np


class NumPy:
    """NumPy, the first step, and a communicator where several ranks run."""

    xp = np
    step = 0

    def __init__(self, comm: Any = None) -> None:
        self.comm = comm


BACKEND = NumPy()
