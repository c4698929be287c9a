"""Sphinx configuration."""

from prefixsim import __version__

project = "prefixsim"
author = "the prefixsim developers"
copyright = "2026, the prefixsim developers"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
smartquotes = False
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"prefixsim {release}"
autodoc_typehints = "description"
nitpicky = False
