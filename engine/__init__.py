"""From a script's call to running ranks: capture, programs, launch, jobs, simulation."""
