# Made by `make goldens`.
from mspc.communication.comm_func import *
