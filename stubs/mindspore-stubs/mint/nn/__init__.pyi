# Made by `make goldens`.
from mspc.mint.nn import *
from mindspore.mint.nn import functional as functional
