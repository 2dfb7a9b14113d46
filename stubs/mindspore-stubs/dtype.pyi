# Made by `make goldens`.
from mspc.dtype import *
