"""`longtail audit`: look at a data set before training on it."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from longtail.cli.arguments import OptionalOut
from longtail.cli.output import refuse_ranks, show
from longtail.core.errors import UserError


@dataclass(frozen=True)
class AuditCommand:
    """Find what is wrong with a data set, and say what to do about it.

    Counts the classes, looks at every image and compares all of them: unreadable files, exact and
    near duplicates, images in two parts or with two labels, empty classes, unusual images. The
    exit code is 0 whatever it finds, and 2 if the data cannot be opened.
    """

    data: Annotated[str, Positional, arg(metavar="DATA")] = ""
    """A name, a path or, with --list, nothing; as for longtail train."""
    out: OptionalOut = None
    """Write a page to this HTML file too. It needs no other file and no network."""
    run_folder: Annotated[Path | None, arg(name="run", metavar="RUN")] = None
    """Finished run of this data: fits accuracy against training images, and names the classes
    where more labels would help most."""
    json: bool = False
    """Print everything as JSON."""
    root: Path | None = None
    """Folder of named data sets, or of a list's images; $LONGTAIL_DATA by default."""
    labels: Path | None = None
    """Table or COCO annotation file that labels the images of DATA, a folder."""
    list: Path | None = None
    """Training list in the style of ImageNet-LT: one 'path label' per line."""
    val_list: Path | None = None
    """Validation list in the same format."""
    test_list: Path | None = None
    """Test list in the same format."""

    examples = """
      longtail audit photos/
      longtail audit photos/ -o audit.html
      longtail audit photos/ --labels labels.csv
      longtail audit photos/ --run runs/photos --json"""

    def run(self) -> None:
        """Print the audit, and write its page if asked to."""
        if self.out and self.out.is_dir():
            raise UserError(f"{self.out} is a folder: pass a file, as in -o {self.out}/audit.html")
        refuse_ranks("audit")
        from longtail.reporting.audit import audit
        from longtail.reporting.template import check_page

        if self.out:
            check_page(self.out)
        names = ("root", "labels", "list", "val_list", "test_list")
        found = audit(self.data, self.run_folder, **{name: getattr(self, name) for name in names})
        if self.json:
            print(json.dumps(found.to_json()))
        else:
            show(fit_encoding(str(found), sys.stdout.encoding or "utf-8"))
        if self.out:
            written = found.write(self.out)
            if not self.json:
                show(f"\nwritten to {written}")


def fit_encoding(text: str, encoding: str) -> str:
    """Return the text as a terminal of this encoding can show it; not every one has bars."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.replace("█", "#").encode(encoding, "replace").decode(encoding)
    return text
