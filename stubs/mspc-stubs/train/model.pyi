# Made by `make goldens`.
from mspc.api.train.model import Model as Model
