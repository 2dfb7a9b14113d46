"""`mindspore` as a second name of mspc, undone between tests."""

import sys

from mspc.mindspore_api.alias import NAME, AliasFinder


def uninstall() -> None:
    """Undo `alias.install` and forget the modules that it imported."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AliasFinder)]
    for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
        del sys.modules[name]
