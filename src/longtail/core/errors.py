"""What a user can do wrong, said in one clear paragraph.

A `UserError` names the value, the rule and the way out. The command line prints it and exits
with code 2; every other exception is our bug and keeps its traceback.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class UserError(ValueError):
    """A mistake that the user can mend; its message is all they need to read.

    A `ValueError`, as scikit-learn and its users expect of an estimator that refuses its input.
    """


def unknown(kind: str, name: str, known: Iterable[str], more: str = "") -> UserError:
    """The error for a name that is not known, with the nearest known one.

    Args:
        kind: what the name should have been, as in "method".
        name: the user's own string.
        known: the names that would have been right.
        more: where to find them all.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UserError(f"unknown {kind} '{name}'.{hint}" + (f" ({more})" if more else ""))


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of `names`, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
