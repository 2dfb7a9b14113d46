# Made by `make goldens`.
from mspc.common import *
from mindspore.common import dtype as dtype
from mindspore.common import initializer as initializer
from mindspore.common import parameter as parameter
from mindspore.common import seed as seed
from mindspore.common import tensor as tensor
