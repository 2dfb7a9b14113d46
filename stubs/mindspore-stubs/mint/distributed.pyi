# Made by `make goldens`.
from mspc.mint.distributed import *
