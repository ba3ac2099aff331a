"""Commands that list what there is."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from longtail.cli.output import print_lines


@dataclass(frozen=True)
class Methods:
    """List the methods with their papers and how the paper reads them, or the options of one."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="METHOD")] = ""
    """Show the options of this one."""
    out: Path | None = None
    """Write the table and all options as a Markdown page."""

    examples = """
      longtail methods
      longtail methods deconfound-tde
      longtail methods --out docs/methods.md"""

    def run(self) -> None:
        """Print or write them."""
        from longtail import methods
        from longtail.methods import table as listing

        if self.name:
            options = methods.options_of(self.name).values()
            print(methods.describe(self.name))
            print_lines(["option", "default"], [[f"--{o.name}", str(o.default)] for o in options])
        elif self.out:
            print(f"written to {listing.write(self.out)}")
        else:
            print_lines(list(listing.HEADER), [listing.row(name) for name in listing.by_year()])


@dataclass(frozen=True)
class DataSets:
    """List the data sets by name, and which of them are found."""

    root: Path | None = None
    """Where to look; else $LONGTAIL_DATA."""

    examples = """
      longtail data --root ~/data"""

    def run(self) -> None:
        """Print them."""
        from longtail.data.load import list_data_sets

        print_lines(["data", "what", "found"], [list(row) for row in list_data_sets(self.root)])
        print("detectors have their own: longtail detect train --help")
