# Made by `make goldens`.
from mspc.dataset.text import *
