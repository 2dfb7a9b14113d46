# Made by `make goldens`.
from mspc.ops import *
from mindspore.ops import functional as functional
from mindspore.ops import operations as operations
