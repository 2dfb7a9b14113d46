# Made by `make goldens`.
from mspc.boost import *
