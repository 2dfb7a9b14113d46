# Made by `make goldens`.
from mspc.common.initializer import *
