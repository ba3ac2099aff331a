"""Audit a data set: what it holds, what is wrong with it, and what to do about that."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longtail.data.base import ClassCounts
from longtail.data.findings import Finding, list_findings
from longtail.data.inspection import Inspection, inspect
from longtail.data.load import open_unread
from longtail.reporting import audit_page, audit_text
from longtail.reporting.outlook import RunOutlook, study_run
from longtail.reporting.template import write_page
from longtail.runs.folder import Run


@dataclass(frozen=True)
class Audit:
    """The audit of a data set; it prints as text, and a notebook shows it as a page."""

    inspection: Inspection = field(repr=False)
    """What was found, row by row."""
    findings: tuple[Finding, ...]
    """What is wrong or unusual, the worst first."""
    outlook: RunOutlook | None = None
    """Accuracy against training images, if a run was given."""

    def __str__(self) -> str:
        lines = [
            *audit_text.describe_data(self.inspection),
            *audit_text.describe_findings(self.inspection, self.findings),
            *(audit_text.describe_outlook(self.outlook) if self.outlook else ()),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return audit_page.render_body(self.inspection, self.findings, self.outlook)

    def to_html(self) -> str:
        """Return a page of one file that needs no network."""
        return audit_page.render_page(self.inspection, self.findings, self.outlook)

    def write(self, out: Path | str) -> Path:
        """Write the page to `out`."""
        return write_page(Path(out), self.to_html())

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values; rows and classes are named."""
        classes, counts = self.inspection.source.classes, self.inspection.counts
        images = self.inspection.summarise_images()
        train = ClassCounts(counts["train"])
        return {
            "data": self.inspection.name,
            "classes": list(classes),
            "counts": {part: list(each) for part, each in counts.items()},
            "imbalance": train.imbalance,
            "splits": {
                name: [classes[c] for c in members] for name, members in train.splits.items()
            },
            "images": images and images._asdict(),
            "findings": [self._finding_to_json(finding) for finding in self.findings],
            "run": self.outlook and self.outlook.to_json(),
        }

    def _finding_to_json(self, finding: Finding) -> dict[str, Any]:
        items = [
            {
                "note": item.note,
                "rows": [
                    {
                        "part": row.part,
                        "name": self.inspection.name_row(row),
                        "class": self.inspection.name_class(row),
                    }
                    for row in item.rows
                ],
            }
            for item in finding.items
        ]
        return {
            "kind": finding.kind,
            "summary": finding.summary,
            "advice": finding.advice,
            "items": items,
        }


def audit(data: Any = "", run: Run | Path | str | None = None, **options: Any) -> Audit:
    """Audit a data set without training on it.

    Args:
        data: whatever `load` takes. No image size is needed.
        run: a finished run of this data, to see which classes would gain from more labels.
        options: where the data is: `root`, `labels`, `list`, `val_list`, `test_list` or
            `download`.

    Returns:
        The audit. Print it, show it in a notebook, or `write` it as a page.

    Raises:
        UserError: if there is no such data, or the run is not of its classes.
    """
    name, source = open_unread(data, **options)
    outlook = None if run is None else study_run(run, set(source.classes))
    inspection = inspect(name, source)
    return Audit(inspection, list_findings(inspection), outlook)
