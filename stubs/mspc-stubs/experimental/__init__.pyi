# Made by `make goldens`.
from mspc.experimental import optim as optim
