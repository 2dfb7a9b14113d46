# Made by `make goldens`.
from mspc.communication import *
