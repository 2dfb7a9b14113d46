"""The runtime: runs a rank's graph from its text file, plans memory, drives communicators and GPUs."""
