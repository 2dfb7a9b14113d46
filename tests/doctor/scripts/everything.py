"""Names of a star, and rebinding: only what is sure is named."""

from mindspore.nn import *
from mindspore.ops import *

import numpy as np

net = SequentialCell([Dense(3, 4), NoLayerOfThisName(4, 5)])  # lacks mindspore.ops.NoLayerOfThisName
print(relu(np.ones(3)), len([each for each in net]), undefined_but_guarded if False else None)  # lacks mindspore.ops.undefined_but_guarded

ops = object()
for ops in (1, 2):
    ops.nothing_known()


def inner(Dense):
    return Dense.anything + [Dense.other for Dense in ()]


class Plain:
    def method(self):
        return self.missing

    @staticmethod
    def other(self):
        return self.missing


class Late(Plain, Cell):
    def construct(self, x):
        return self.missing_from_both(x)


class Open(np.ndarray, Cell):
    def construct(self, x):
        return self.from_somewhere(x)
