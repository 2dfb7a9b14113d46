# Made by `make goldens`.
from mspc.common.seed import *
