# Made by `make goldens`.
from mspc.mint.nn.functional import *
