# Made by `make goldens`.
from mspc.train.model import *
