# Made by `make goldens`.
from mspc.amp import *
