"""From a script's call to running ranks: the engine captures calls, makes programs, and starts or simulates jobs."""
