# Made by `make goldens`.
from mspc.device_context import *
