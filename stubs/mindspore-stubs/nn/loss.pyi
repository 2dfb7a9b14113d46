# Made by `make goldens`.
from mspc.nn.loss import *
