"""User mistakes, each explained in one clear paragraph.

A `UserError` names the value, the rule and the way out. The command line prints it and exits with
code 2; every other exception is our bug and keeps its traceback.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can fix; its message is all they need to read.

    It is a `ValueError`, which scikit-learn expects from an estimator that rejects its input.
    """


class SeveralErrors(UserError):
    """Several mistakes, one on each line of the message."""

    def __init__(self, errors: Sequence[UserError]):
        super().__init__("\n- ".join([f"{len(errors)} problems:", *map(str, errors)]))
        self.errors = errors


class Problems:
    """User errors and warnings that are collected, so that the user sees all of them at once."""

    def __init__(self, errors: Iterable[UserError] = ()):
        self.errors = list(errors)
        self.warnings: list[str] = []
        self.missing: list[str] = []  # warnings about images that do not exist

    def add(self, message: str) -> None:
        """Add a user error."""
        self.errors.append(UserError(message))

    @contextmanager
    def collect(self) -> Iterator[None]:
        """Keep a user error of the block instead of raising it."""
        try:
            yield
        except SeveralErrors as several:
            self.errors += several.errors
        except UserError as error:
            self.errors.append(error)

    def raise_all(self) -> None:
        """Raise all errors as one, if there are any."""
        if len(self.errors) > 1:
            raise SeveralErrors(self.errors)
        if self.errors:
            raise self.errors[0]


def unknown_error(kind: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """Return the error for an unknown `name` of a `kind`, suggesting the nearest of `known`.

    `more`, in brackets at the end, says where to find all valid names.
    """
    near = suggest(name, known)
    stop = "." if near or not more else ""
    more = f" ({more})" if more else ""
    return UserError(f"unknown {kind} '{name}'{stop}{near}{more}")


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a sentence that suggests the nearest of `known`, ignoring case; empty if none is."""
    folded = {each.casefold(): each for each in known}
    near = get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    return f" Did you mean '{folded[near[0]]}'?" if near else ""


def list_some(names: Sequence[str], most: int = 3) -> str:
    """Join the first of `names`, and count the rest."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
