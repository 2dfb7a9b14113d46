# Made by `make goldens`.
from mspc._c_expression import *
