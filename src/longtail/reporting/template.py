"""The templates, styles and scripts that lie in `page/` and are inlined into single-file pages."""

from importlib.resources import files

import jinja2


def template(name: str) -> jinja2.Template:
    """The template called `name`; what it is given is escaped."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(source(name))


def source(name: str) -> str:
    """The text of a file in `page/`."""
    return files("longtail.reporting").joinpath("assets", name).read_text(encoding="utf-8")
