# Made by `make goldens`.
from mspc.nn.optim import *
