"""The manual as a site: `nox -s site`. Sphinx reads a copy of the tracked files, so that links
between pages and to sources hold as they do in the repository."""

project = "Preflight"
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "docs/site/index"
exclude_patterns = [".github/**", "**/CHANGELOG.md"]
myst_heading_anchors = 4
myst_enable_extensions = ["tasklist"]
html_theme = "furo"
html_title = "Preflight"
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
copybutton_prompt_text = "$ "
# A fence without a language is a program's output.
highlight_language = "text"
suppress_warnings = ["misc.highlighting_failure"]
