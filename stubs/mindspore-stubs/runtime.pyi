# Made by `make goldens`.
from mspc.runtime import *
