"""Templates, styles and scripts in `assets/`, which pages contain inline."""

from base64 import b64encode
from functools import cache
from importlib.resources import files
from pathlib import Path

import jinja2

from longtail.core.errors import UserError
from longtail.core.files import check_own, replace_atomically

PAGES = (".html", ".htm")
"""Suffixes of pages."""


@cache  # parsing one takes longer than rendering it
def template(name: str) -> jinja2.Template:
    """Return the template called `name`; it escapes the values that it shows."""
    loader = jinja2.FunctionLoader(source)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment.get_template(name)


def source(name: str) -> str:
    """Return the text of the file `name` in `assets/`."""
    return files("longtail.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def encode_jpeg(content: bytes) -> str:
    """Return the content of a JPEG file as a data URL, to embed in a page."""
    return f"data:image/jpeg;base64,{b64encode(content).decode()}"


def check_page(out: Path) -> None:
    """Refuse another kind of file than .html, and to replace one that is not a page of ours."""
    if out.suffix.lower() not in PAGES:
        raise UserError(f"{out}: a page must end in .html, as in -o {out.with_suffix('.html')}")
    check_own(out, b"<title>longtail", "longtail")


def write_page(out: Path, page: str) -> Path:
    """Write a page to `out`, where at most another page of ours may lie."""
    check_page(out)
    with replace_atomically(out) as path:
        path.write_text(page, encoding="utf-8")
    return out
