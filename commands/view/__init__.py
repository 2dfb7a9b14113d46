"""`mspc view` reads the facts out of dumps and writes one page that shows what a compile decided, and why."""
