# Made by `make goldens`.
from mspc.ops.extended import *
