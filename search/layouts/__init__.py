"""Layouts from the solver, within a memory limit or close to it, assigned to operators."""
