"""Reads three files of its own package."""

import numpy as np

from language_model import compatible as c
from language_model.layers import Attention

net = Attention(None)
net.to_float(c.nn.ReLU)
c.nn.HSwishOfThen()  # lacks mindspore.nn.HSwishOfThen
print(np.nothing_here, c.something_else, net.batch_matmul.launch_at_once())
