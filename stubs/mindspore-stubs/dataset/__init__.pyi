# Made by `make goldens`.
from mspc.dataset import *
from mindspore.dataset import config as config
from mindspore.dataset import stages as stages
from mindspore.dataset import text as text
from mindspore.dataset import transforms as transforms
from mindspore.dataset import vision as vision
