# Made by `make goldens`.
from mspc.hal import *
