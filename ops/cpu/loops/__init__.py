"""Loops over elements and rows are written in C++ here, compiled where there is a compiler, and kept on disk."""
