# Made by `make goldens`.
from mspc.train.metrics import *
