# Made by `make goldens`.
from mspc.train.callback import *
