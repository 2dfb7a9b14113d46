# Made by `make goldens`.
from mspc.ops import *
