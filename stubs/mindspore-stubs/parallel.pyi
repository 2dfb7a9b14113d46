# Made by `make goldens`.
from mspc.parallel import *
