# Made by `make goldens`.
from mspc.nn.utils import *
