"""Ranks are started under mpirun, and read the variables of their launcher here and nowhere else."""
