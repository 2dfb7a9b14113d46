# Made by `make goldens`.
from mspc.experimental.optim import *
