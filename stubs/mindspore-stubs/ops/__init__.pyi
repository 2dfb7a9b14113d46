# Made by `make goldens`.
from mspc.ops import *
from mindspore.ops import extended as extended
from mindspore.ops import functional as functional
from mindspore.ops import operations as operations
