"""Settings of the documentation site: sphinx reads the Markdown pages of this folder as they are (`make docs`)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from docutils import nodes  # noqa: E402
from docutils.utils.math.latex2mathml import tex2mathml  # noqa: E402

import hessfig  # noqa: E402  (the package of this folder, wherever sphinx is started)

project, author, release = "hessfig", "The hessfig developers", hessfig.__version__
copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
napoleon_google_docstring = False
napoleon_use_param = False  # names that share a description share one entry
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath", "html_image"]
html_math_renderer = "mathml"  # browsers draw it themselves: no script from the web
default_role = "literal"
smartquotes = False  # options such as --help keep their two hyphens
html_theme, html_title = "furo", f"hessfig {release}"
html_copy_source = html_show_sourcelink = False
html_css_files, html_static_path = ["site.css"], ["site"]
html_theme_options = {"navigation_with_keys": True}
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"

# Pages below another one in the side bar. The pages stay free of directives, which
# hosts of repositories show as text.
BELOW = {
    "own-model": ["own-model-checks"],
    "real-models": ["real-model-times"],
    "commands": ["cluster"],
    "conventions": ["networks"],
    "architecture": ["tree"],
    "accuracy": ["performance"],
    "theory": ["paper-vs-code"],
}

# A line of a docstring that explains an argument: its name, two spaces or more, what it
# is.
ARGUMENT = re.compile(r"^(?P<names>\w[\w, ]*?) {2,}(?P<text>\S.*)$")


def as_definitions(lines: list[str]) -> list[str]:
    """Return a docstring whose aligned lists of arguments are definition lists."""
    found = list[str]()
    inside = False
    for line in lines:
        argument = ARGUMENT.match(line)
        if argument:
            found += ["", f"**{argument['names']}**", f"    {argument['text']}"]
        elif inside and line.startswith("    "):
            found.append(f"    {line.strip()}")
        else:
            found.append(line)
        inside = bool(argument) or (inside and line.startswith("    "))
    return found


def _rewrite(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = as_definitions(lines)


def _with_parts(_app: Any, page: str, text: list[str]) -> None:
    """Show the text of every example at the end of the page that lists them, and name the pages below a page."""
    if page in BELOW:
        text[0] += "\n```{toctree}\n:hidden:\n\n" + "\n".join(BELOW[page]) + "\n```\n"
    if page == "tutorial":
        text[0] += "\n## Scripts of the examples\n"
        for path in sorted((ROOT / "examples").glob("*.py")):
            text[0] += f"\n### {path.name}\n\n```{{literalinclude}} ../examples/{path.name}\n:language: python\n```\n"


def _formula(writer: Any, node: nodes.Element) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def setup(app: Any) -> None:
    """Connect the hooks of this file."""
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.connect("autodoc-process-docstring", _rewrite)
    app.connect("source-read", _with_parts)
