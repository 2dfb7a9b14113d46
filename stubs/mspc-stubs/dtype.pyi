# Made by `make goldens`.
from mspc.common.dtype import *
