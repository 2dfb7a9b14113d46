"""The engine leads from a script's call to running ranks: captures calls, makes programs, starts or simulates jobs."""
