"""The doctor reads a script, without running it, and lists the names of MindSpore that mspc lacks or ignores."""
