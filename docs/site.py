"""Hooks of the docs build, which bring pages from outside this folder onto the site.

The README becomes the home page, and results/ and recipes/ join the site, so that links work there
as they do in the repository.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = ("README.md", "LICENSE", "CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside docs/; the README is the home page."""
    results = [path for path in (ROOT / "results").rglob("*.*") if path.is_file()]
    for path in [*(ROOT / name for name in BESIDE), *results, *(ROOT / "recipes").rglob("*.yaml")]:
        uri = path.relative_to(ROOT).as_posix().replace("README.md", "index.md")
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links relative to the site, whose root is docs/ and the repository at once."""
    if "/" in page.file.src_uri:  # a page of results/
        return markdown.replace("](../docs/", "](../")
    markdown = markdown.replace("](docs/", "](").replace("](results)", "](results/cifar-lt.md)")
    return re.sub(r"\]\(\.\./((?:results|recipes|LICENSE|C)[^)]*)\)", r"](\1)", markdown)
