# Made by `make goldens`.
