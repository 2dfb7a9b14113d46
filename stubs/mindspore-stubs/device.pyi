# Made by `make goldens`.
from mspc.device import *
