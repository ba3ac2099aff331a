"""`longtail train`: train and evaluate classifiers."""

from dataclasses import dataclass, field
from pathlib import Path

from longtail.cli.arguments import OptionalOut, check_writable
from longtail.cli.output import is_first_process, print_candidates, print_remarks, print_table, show
from longtail.core.config import Config
from longtail.core.console import Console
from longtail.core.errors import UserError


@dataclass(frozen=True)
class Train:
    """Train one or more methods on a data set and evaluate them.

    Defaults depend on DATA. Without it, --help shows those for your own images; what follows from
    these is printed, with the reasons, before training starts. Named data sets have a recipe of
    their own, which longtail train letters-lt --help shows. Methods have further options, such as
    --alpha, --heads and --tau: see longtail methods NAME.
    """

    config: Config = field(default_factory=Config)
    out: OptionalOut = None
    """Folder for the run, runs/DATA-METHOD by default. Several methods or seeds each get a folder
    OUT/METHOD/sSEED."""
    seeds: int | None = None
    """Train this many seeds, starting at --seed, and report mean and deviation."""
    recipe: Path | None = None
    """Name of a recipe, such as frontier, or YAML file of options; used as defaults."""
    resume: bool = False
    """Continue an interrupted run; its configuration must not change."""
    overwrite: bool = False
    """Replace an existing run in the folder."""

    main_options = (
        *("data", "method", "backbone", "weights", "freeze", "epochs", "batch_size"),
        *("lr", "image_size", "val_fraction", "root", "seeds", "out", "resume"),
    )
    examples = """
      longtail train letters-lt
      longtail train cifar100-lt:100 --root ~/data --alpha 1.5 --seeds 3
      longtail train cifar100-lt:100 --root ~/data --recipe frontier
      longtail train photos/ --pretrained -o runs/photos
      longtail train labels.csv --pretrained --val-fraction 0.2
      longtail train photos/ --weights tf_efficientnet_lite0.bin --freeze
      longtail train letters-lt --method baseline,deconfound-tde -o runs/letters
      longtail train letters-lt --method all --seeds 3
      longtail train --list train.txt --test-list test.txt --root images/"""

    def load_config(self) -> Config:
        """Return the configuration of the run in --out."""
        from longtail.runs.folder import Run

        assert self.out
        return Run(self.out).config

    def run(self) -> None:
        """Train, then print a table of accuracies."""
        from longtail import methods
        from longtail.evaluation.result import short_name
        from longtail.reporting.template import check_page
        from longtail.runs.fit import fit_all

        if not self.config.data and not self.config.files.list:
            raise UserError("which data? Give a name, a path or --list (see longtail data)")
        method = self.config.method
        names = methods.list_names() if method == "all" else method.split(",")
        source = short_name(self.config.data or str(self.config.files.list)).replace(":", "-")
        out = self.out or Path("runs") / f"{source}-{method}"
        check_writable(out)
        if self.seeds is not None and self.seeds < 1:
            raise UserError(f"--seeds {self.seeds}: must be at least 1")
        seeds = range(self.config.seed, self.config.seed + (self.seeds or 1))
        if len(names) * len(seeds) > 1:
            check_page(out / "report.html")  # it is written last
        with Console() as console:
            runs = fit_all(
                self.config,
                names,
                seeds,
                out=out,
                resume=self.resume,
                overwrite=self.overwrite,
                progress=console,
            )
        results = [run.result for run in runs]
        print_table(results)
        print_candidates(results)
        print_remarks(results)
        if not is_first_process():
            return
        show(f"written to {out}")
        if len(runs) > 1:
            from longtail.reporting.page import report

            several = results[0].get("task") == "multi-label"
            figure = "average precision by label" if several else "accuracy by class"
            show(f"{figure}, head to tail: {report(runs, out / 'report.html')}")
