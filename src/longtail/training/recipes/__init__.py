"""Recipes that users name, as in `--recipe frontier`: YAML files of options beside this one."""

from importlib.resources import files
from pathlib import Path

from longtail.core.config import Config
from longtail.core.errors import unknown_error
from longtail.core.plain import read_text

SUFFIX = ".yaml"


def read_recipe(recipe: Path | str, data: str = "") -> Config:
    """Return the options of a named recipe or of a YAML file, for `data` unless it names its own.

    The name is kept in the result.
    """
    folder, path = files(__name__), Path(recipe)
    if path.suffix or len(path.parts) > 1 or path.is_file():
        return Config.from_yaml(read_text(path), f"the recipe {path}", data)
    known = [file.name.removesuffix(SUFFIX) for file in folder.iterdir() if SUFFIX in file.name]
    if path.name not in known:
        more = f"they are {', '.join(sorted(known))}, or give a YAML file"
        raise unknown_error("recipe", path.name, known, more)
    text = (folder / f"{path.name}{SUFFIX}").read_text(encoding="utf-8")
    return Config.from_yaml(text, f"recipe {path.name}", data).with_options(recipe_name=path.name)
