# Made by `make goldens`.
from mspc.mindrecord import *
