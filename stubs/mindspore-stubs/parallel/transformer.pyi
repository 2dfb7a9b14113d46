# Made by `make goldens`.
from mspc.parallel.transformer import *
