"""`mspc view`: one page that shows what a compile decided and why; facts out of dumps, and the page that draws them."""
