# Made by `make goldens`.
from mspc.common.parameter import *
