"""The demo: three methods on letters in the frequencies of English, in a minute or two on a CPU."""

from collections.abc import Sequence
from pathlib import Path

from longtail.core.config import Config
from longtail.core.errors import UserError, list_some
from longtail.core.options import differences
from longtail.reporting.page import report
from longtail.reporting.template import check_page
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.runs.plan import plan
from longtail.training.loop import Progress

METHODS = ("baseline", "deconfound", "deconfound-tde")
ALPHA = 1.0
"""Fixed before any result of the demo was seen."""


def demo(
    out: Path, seeds: Sequence[int], progress: Progress | None = None
) -> tuple[list[Run], Path]:
    """Train the three methods and write their report; return the runs and the page."""
    page = out / "report.html"
    check_page(page)
    _check_folder(out)
    config = Config.preset("letters-lt").with_options(alpha=ALPHA)
    for job in plan(config, METHODS, seeds, out):
        if (job.run.folder / "config.yaml").exists() and differences(job.run.config, job.config):
            raise UserError(
                f"{job.run.folder} is not a run of the demo, which would replace it: "
                "choose another --out"
            )
    runs = fit_all(config, METHODS, seeds, out=out, overwrite=True, progress=progress)
    return runs, report(runs, page)


def _check_folder(out: Path) -> None:
    """Refuse a folder that holds something and no run of the demo; a lock is hidden."""
    names = {path.name for path in out.glob("[!.]*")}
    if names and not names & set(METHODS):
        raise UserError(f"{out} holds {list_some(sorted(names))} and no demo: choose another --out")
