"""`python -m mspc` is the command line."""

from mspc.cli import main

if __name__ == "__main__":
    main()
