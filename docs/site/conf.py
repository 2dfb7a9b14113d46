"""This is Sphinx's configuration of the site; `docs/site/build.py` runs it."""

project = "mspc"
extensions = ["myst_parser"]
html_theme = "furo"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["mspc.css"]
html_show_sphinx = False
myst_heading_anchors = 6
myst_enable_extensions = ["deflist"]
