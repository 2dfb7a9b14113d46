"""This is the only reader of what a launcher tells a rank by its environment. It starts mpirun, too."""
