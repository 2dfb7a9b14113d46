"""Operators in other languages, and Python in a graph."""

import numpy as np

import mindspore as ms
from mindspore import ops
from mindspore.ops import CustomRegOpOfDevices  # lacks mindspore.ops.CustomRegOpOfDevices
from mindspore.ops.op_info_register_of_devices import op_info  # lacks mindspore.ops.op_info_register_of_devices

P = ops.operations
Square = P.Square
alias = P.NoOperatorOfThisName  # lacks mindspore.ops.operations.NoOperatorOfThisName

square = Square()
other = alias()


def reduced(x):
    total = ms.ops.reduce_sum(x, keep_dims=True) if hasattr(ms.ops, "reduce_sum") else x.sum()
    grown = getattr(ops, "grow_a_tensor")(x)
    safe = getattr(ops, "grow_a_tensor", None)
    return total, grown, safe


@ms.jit(jit_level="O2", backend="ms_backend", capture="ast")  # ignored mindspore.jit(jit_level), mindspore.jit(backend) # lacks mindspore.jit(capture)
def run(x):
    return square(x) + ms.numpy_of_devices.array(np.ones(3))  # lacks mindspore.numpy_of_devices


def parsed(version):
    ops = np  # another name of the same spelling
    return ops.no_operator_at_all(version)
