# Made by `make goldens`.
from mspc.api.nn.utils import no_init_parameters as no_init_parameters
