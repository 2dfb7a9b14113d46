# Made by `make goldens`.
from mspc.parallel import *
from mindspore.parallel import transformer as transformer
