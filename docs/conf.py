"""Sphinx configuration. `sphinx-build -W -b html docs docs/_build` builds the site without network."""

project = "warplens"
author = "The warplens authors"
copyright = "2026, the warplens authors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "reference/records-table.md"]  # the table is included by reference/records.md
default_role = "code"
nitpicky = False

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "separated"  # classes are made by functions or class methods, not by __init__
autodoc_default_options = {"members": True}

html_theme = "furo"
html_title = "warplens"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
