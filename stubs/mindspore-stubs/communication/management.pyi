# Made by `make goldens`.
from mspc.communication.management import *
