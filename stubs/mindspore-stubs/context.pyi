# Made by `make goldens`.
from mspc.context import *
