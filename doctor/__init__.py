"""Which names of MindSpore a script uses that mspc lacks or ignores: scripts are read, never run."""
