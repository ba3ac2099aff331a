"""`longtail methods` and `longtail data`: list methods and data sets."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from longtail.cli.arguments import OptionalOut
from longtail.cli.output import print_lines, show
from longtail.core.errors import UserError

PAGE = rb"\A# Methods\n\nTrain with `longtail train "
"""How every page of `longtail methods` begins."""


@dataclass(frozen=True)
class Methods:
    """List the methods with their papers, or the options of one method."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")] = ""
    """Show the options of this method."""
    out: OptionalOut = None
    """Write all methods and their options to this Markdown file."""

    examples = """
      longtail methods
      longtail methods deconfound-tde
      longtail methods --out methods.md"""

    def run(self) -> None:
        """Print the list, or write the page."""
        from longtail import methods
        from longtail.methods import table as listing

        if self.name and self.out:
            raise UserError(
                f"--out writes a page of all methods, and {self.name} is one: pass --out or a "
                "method, not both"
            )
        if self.name:
            show(methods.describe(self.name))
            if options := listing.describe_options(self.name):
                print_lines(["option", "default", "meaning"], options)
        elif self.out:
            from longtail.core.files import check_own, replace_atomically

            check_own(self.out, PAGE, "longtail methods")
            with replace_atomically(self.out) as temporary:
                listing.write(temporary)
            show(f"written to {self.out}")
        else:
            print_lines(listing.HEADER, map(listing.row, listing.by_year()))
            show(listing.describe_several())


@dataclass(frozen=True)
class DataSets:
    """List the data sets and where they were found."""

    root: Path | None = None
    """Folder to look in; $LONGTAIL_DATA by default."""

    examples = """
      longtail data --root ~/data"""

    def run(self) -> None:
        """Print the list."""
        from longtail.data.catalogue import list_data_sets

        if self.root and not os.path.isdir(os.path.expanduser(self.root)):
            raise UserError(f"--root {self.root}: there is no such folder")
        print_lines(["data", "what", "found"], list_data_sets(self.root))
        show(
            "or a path: class folders, .csv, .tsv, .parquet, .npz, a folder of parquet files or of "
            "COCO boxes; or --list"
        )
        show("for detection data sets see longtail detect train --help")
