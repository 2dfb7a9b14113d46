# Made by `make goldens`.
from mspc.common.tensor import *
