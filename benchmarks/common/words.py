"""Words of `--only`, which select what a benchmark runs by name."""

from collections.abc import Iterable, Sequence

from longtail.core.errors import UserError, suggest


def select_words(names: Iterable[str], only: Sequence[str]) -> list[str]:
    """Select the names that contain a word of `only`, by default all.

    Raises:
        UserError: if one of the words is in no name, since it must be a typing error.
    """
    known = list(dict.fromkeys(names))
    for word in only:
        if not any(word in name for name in known):
            near = suggest(word, known)
            raise UserError(
                f"--only {word}: no name contains it.{near} The names are:\n{'; '.join(known)}"
            )
    return [name for name in known if not only or any(word in name for word in only)]
