"""Strategies and plans are read and written here: names of operators in files, and layouts that a graph takes."""
