"""Changes of one place of the code, and the tests that notice them: `python -m tests.mutation --help`."""
