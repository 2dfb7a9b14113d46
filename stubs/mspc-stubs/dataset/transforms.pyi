# Made by `make goldens`.
from mspc.api.dataset.transforms import Compose as Compose
from mspc.api.dataset.transforms import Fill as Fill
from mspc.api.dataset.transforms import OneHot as OneHot
from mspc.api.dataset.transforms import TypeCast as TypeCast
