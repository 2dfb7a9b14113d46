"""C++ loops: generated, compiled if there is a compiler, and cached on disk."""
