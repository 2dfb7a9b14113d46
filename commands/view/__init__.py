"""`mspc view`: one HTML page that shows the decisions of a compile and their reasons."""
