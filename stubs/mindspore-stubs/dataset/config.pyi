# Made by `make goldens`.
from mspc.dataset.config import *
