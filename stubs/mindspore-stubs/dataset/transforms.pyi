# Made by `make goldens`.
from mspc.dataset.transforms import *
