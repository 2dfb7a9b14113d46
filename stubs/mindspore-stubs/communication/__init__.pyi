# Made by `make goldens`.
from mspc.communication import *
from mindspore.communication import management as management
