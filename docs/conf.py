"""The site of docs/: `sphinx-build -W --keep-going docs OUT`, with `pip install -e '.[docs]'`."""

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util import logging

project = "jaxtern"
author = "the authors of jaxtern"
html_title = "jaxtern"
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_copyright = False
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

# Links between pages are checked by MyST. Types are prose in our docstrings, and those of others have pages elsewhere.
nitpick_ignore_regex = [("py:(class|exc|data)", ".*")]

_ROOT = Path(__file__).parents[1]
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)#]+)\)")
_SECTION = re.compile(r"(Args|Attributes|Raises|References?|Returns):\s*$")
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def name_files_of_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Links out of docs/ lead nowhere on the site: the file is named instead."""

    def name(link: re.Match) -> str:
        if not (_ROOT / link[2]).exists():
            logging.getLogger(__name__).warning("no such file: %s", link[2], location=page, type="link")
        return f"{link[1]} (`{link[2]}`)" if link[1] != link[2] else f"`{link[2]}`"

    if app.env.doc2path(page).suffix == ".md":
        source[0] = _OUTSIDE.sub(name, source[0])


def as_restructured_text(_app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]):
    """Our docstrings in Sphinx' markup: indented formulas become literal blocks, `x` becomes ``x``."""
    found, inside, literal = [], False, False
    for line in lines:
        if line.strip() and not line.startswith(" "):
            inside, literal = bool(_SECTION.match(line)), False
        if line.strip() == "Returns:":  # napoleon would take what stands before a colon for a type
            found += ["", ":returns:"]
            continue
        if line.startswith("    ") and not inside and not literal:
            found += ["", ".. code-block:: text", ""]
            literal = True
        found.append(line if literal else _escape(line))
    lines[:] = found


def _escape(line: str) -> str:
    """What stands outside of backticks means itself."""
    parts = _CODE.split(line)
    parts[::2] = [re.sub(r"[|*]|(?<=\w)_(?=\W|$)", lambda each: "\\" + each[0], part) for part in parts[::2]]
    parts[2::2] = ["\\ " + part if part[:1].isalnum() else part for part in parts[2::2]]
    parts[1::2] = [f"``{part}``" for part in parts[1::2]]
    return "".join(parts)


def setup(app: Sphinx) -> None:
    app.connect("source-read", name_files_of_the_repository)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon's
