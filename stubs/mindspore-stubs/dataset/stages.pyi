# Made by `make goldens`.
from mspc.dataset.stages import *
