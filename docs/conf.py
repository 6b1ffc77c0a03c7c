"""The site of docs/: `sphinx-build -W --keep-going docs OUT`, with `pip install -e '.[docs]'`."""

import re

from sphinx.application import Sphinx

project = "jaxtern"
author = "the authors of jaxtern"
html_title = "jaxtern"
html_theme = "furo"
html_static_path = []
html_show_sourcelink = False
exclude_patterns = ["Dockerfile"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks are committed with their outputs; a slow test runs them
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_google_docstring = True
napoleon_custom_sections = [("Reference", "References")]
napoleon_use_ivar = True
nitpicky = True

_SECTION = re.compile(r"(Args|Attributes|Raises|References?|Returns):\s*$")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def as_restructured_text(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]):
    """Our docstrings in Sphinx' markup: indented formulas become literal blocks, `x` becomes ``x``."""
    found, inside, literal = [], False, False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and not indent:
            inside, literal = bool(_SECTION.match(line)), False
        if line.startswith("    ") and not inside and not literal:
            found += ["", ".. code-block:: text", ""]
            literal = True
        elif not literal:
            line = _escape(line)
        found.append(line)
    lines[:] = found


def _escape(line: str) -> str:
    """What stands outside of backticks means itself."""
    parts = _CODE.split(line)
    parts[::2] = [re.sub(r"([|*])|(?<=\w)_(?=\W|$)", lambda each: "\\" + each[0], part) for part in parts[::2]]
    parts[1::2] = [f"``{part}``" for part in parts[1::2]]
    return "".join(parts)


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon's
