"""The names that the package takes from MindSpore."""

from mindspore import nn, ops
from mindspore.common.parallel_utils_of_then import get_parallel_mode  # lacks mindspore.common.parallel_utils_of_then
from mindspore.ops import operations as P

F = ops
