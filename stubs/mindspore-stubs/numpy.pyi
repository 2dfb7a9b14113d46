# Made by `make goldens`.
from mspc.numpy import *
