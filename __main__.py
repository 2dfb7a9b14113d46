"""`mspc` and `python -m mspc`: the command line, which Ctrl-C ends without a traceback while it is loaded, too."""

from __future__ import annotations


def main() -> None:
    """The console script."""
    try:
        from mspc.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None  # as shells have it


if __name__ == "__main__":
    main()
