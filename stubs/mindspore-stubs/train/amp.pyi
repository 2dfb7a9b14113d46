# Made by `make goldens`.
from mspc.train.amp import *
