"""`mspc doctor`: lists the MindSpore names of a script that mspc lacks or ignores, without running the script."""
