"""Collectives on numbers made for them, of a compile and of a communicator, and `mspc verify --mpi`'s ranks."""
