"""Loops over elements and rows are generated in C++ here, compiled if there is a compiler, and stored on disk."""
