"""Templates, styles and scripts in `assets/`, which pages contain inline."""

from functools import cache
from importlib.resources import files

import jinja2


@cache  # parsing one takes longer than rendering it
def template(name: str) -> jinja2.Template:
    """The template called `name`; it escapes the values that it shows."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.from_string(source(name))


def source(name: str) -> str:
    """The text of the file `name` in `assets/`."""
    return files("longtail.reporting").joinpath("assets", name).read_text(encoding="utf-8")
