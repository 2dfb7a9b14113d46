# Made by `make goldens`.
from mspc.mint import *
from mindspore.mint import distributed as distributed
from mindspore.mint import nn as nn
