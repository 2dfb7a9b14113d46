"""Launching ranks under mpirun, and reading the launcher's environment variables."""
