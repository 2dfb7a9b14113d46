# Made by `make goldens`.
from mspc.ops.operations import *
