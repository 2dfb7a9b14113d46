# Made by `make goldens`.
from mspc.api.dataset.images import Cifar10Dataset as Cifar10Dataset
from mspc.api.dataset.pipeline import Dataset as Dataset
from mspc.api.dataset.sources import GeneratorDataset as GeneratorDataset
from mspc.api.dataset.images import MnistDataset as MnistDataset
from mspc.api.dataset.sources import NumpySlicesDataset as NumpySlicesDataset
from mspc.dataset import config as config
from mspc.dataset import transforms as transforms
from mspc.dataset import vision as vision
