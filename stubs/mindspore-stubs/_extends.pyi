# Made by `make goldens`.
from mspc._extends import *
