# Made by `make goldens`.
from mspc.dataset.vision import *
