# Made by `make goldens`.
from mspc.train.serialization import *
