"""The only reader of what a launcher tells a rank by its environment; starts mpirun."""
