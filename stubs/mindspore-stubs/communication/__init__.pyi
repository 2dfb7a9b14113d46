# Made by `make goldens`.
from mspc.communication import *
from mindspore.communication import comm_func as comm_func
from mindspore.communication import management as management
