"""`longtail verify`: check that files still hold what was written."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from longtail.cli.output import refuse_ranks, show
from longtail.core.errors import Problems, UserError
from longtail.core.names import count_noun


@dataclass(frozen=True)
class Verify:
    """Check that runs, exports and the cache are undamaged.

    Compares every file with the hash that was recorded when it was written. Prints a paragraph for
    each damaged or missing file, with the way to repair it, and a summary. Files of older versions
    and of other programs have no recorded hash; they are only opened. What is hidden in a folder,
    such as .venv, is left out. The exit code is 0 if all is well, 1 if there is damage, and
    otherwise 2 if a path has nothing to verify.
    """

    paths: Annotated[tuple[Path, ...], Positional, arg(metavar="RUN...")]
    """Runs, folders of runs, exported files, saved models, or the cache of decoded images."""

    examples = """
      longtail verify runs/letters
      longtail verify runs/* model.safetensors model.onnx
      longtail verify ~/.cache/longtail"""

    def run(self) -> None:
        """Print the damage and a summary."""
        refuse_ranks("verify")
        from longtail.serving.verification import verify_all

        if not self.paths:
            raise UserError("verify what? Name runs, exports or the cache: longtail verify RUN...")
        found, problems = [], Problems()
        for path in self.paths:
            with problems.collect():
                found.append(verify_all(path))
        if not found:
            problems.raise_all()
        for paragraph in (text for each in found for text in each.damage):
            show(paragraph)
        damaged = sum(len(each.damage) for each in found)
        bare = sum(len(each.unverified) for each in found)
        summary = f"{count_noun(sum(each.verified for each in found), 'file')} verified, "
        summary += f"{damaged:,} damaged or missing"
        if bare:
            summary += f"; {count_noun(bare, 'file')} without a recorded hash"
        show(summary)
        if damaged:
            for error in problems.errors:
                show(f"longtail: {error}", file=sys.stderr)
            sys.exit(1)
        problems.raise_all()
