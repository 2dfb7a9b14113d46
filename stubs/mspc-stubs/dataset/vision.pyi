# Made by `make goldens`.
from mspc.api.dataset.vision import HWC2CHW as HWC2CHW
from mspc.api.dataset.vision import Inter as Inter
from mspc.api.dataset.vision import Normalize as Normalize
from mspc.api.dataset.vision import RandomCrop as RandomCrop
from mspc.api.dataset.vision import RandomHorizontalFlip as RandomHorizontalFlip
from mspc.api.dataset.vision import Rescale as Rescale
from mspc.api.dataset.vision import Resize as Resize
from mspc.api.dataset.vision import ToTensor as ToTensor
