"""The collectives of a compile and of a communicator are run on numbers made for them, under `--mpi` by real ranks."""
