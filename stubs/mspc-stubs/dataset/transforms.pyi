# Made by `make goldens`.
from mspc.api.dataset.transforms import Compose as Compose
from mspc.api.dataset.transforms import Fill as Fill
from mspc.api.dataset.transforms import OneHot as OneHot
from mspc.api.dataset.transforms import RandomApply as RandomApply
from mspc.api.dataset.transforms import RandomChoice as RandomChoice
from mspc.api.dataset.transforms import RandomOrder as RandomOrder
from mspc.api.dataset.transforms import TypeCast as TypeCast
