# Made by `make goldens`.
from mspc.ops.functional import *
