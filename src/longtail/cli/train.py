"""Commands that train."""

from dataclasses import dataclass, field
from pathlib import Path

from longtail.cli.output import is_first_process, print_table
from longtail.core.config import Config
from longtail.core.errors import UserError


@dataclass(frozen=True)
class Train:
    """Train methods on a data set and judge them at the last epoch.

    A method's own options stand anywhere, as in --alpha 1.5 --heads 4: see longtail methods NAME.
    """

    config: Config = field(default_factory=Config)
    out: Path | None = None
    """Run folder; runs/DATA-METHOD by default, OUT/METHOD/sSEED for several methods or seeds."""
    seeds: int | None = None
    """Train this many seeds, from --seed on, and report mean and deviation."""
    recipe: Path | None = None
    """YAML file whose options become the defaults of this command."""
    resume: bool = False
    """Go on with an interrupted run; nothing in its configuration may change."""
    overwrite: bool = False
    """Replace the run that is in the folder."""

    main_options = (
        *("data", "method", "backbone", "epochs", "batch_size"),
        *("lr", "image_size", "val_fraction", "out"),
    )
    examples = """
      longtail train letters-lt
      longtail train cifar100-lt:100 --root ~/data --method deconfound-tde --alpha 1.5 --seeds 3
      longtail train photos/ --image-size 96 --backbone resnet18 --val-fraction 0.2 --alpha auto
      longtail train letters-lt --method baseline,deconfound,deconfound-tde --out runs/letters
      longtail train letters-lt --method all --seeds 3
      longtail train --list train.txt --test-list test.txt --root images/ --image-size 224"""

    def load_config(self) -> Config:
        """Return the configuration of the run in --out."""
        from longtail.runs.folder import Run

        assert self.out
        return Run(self.out).config

    def run(self) -> None:
        """Train, then print the table."""
        from longtail import methods
        from longtail.cli.output import Console
        from longtail.runs.fit import fit_all

        if not self.config.data and not self.config.files.list:
            raise UserError("which data? Give a name, a folder or --list (see longtail data)")
        asked = self.config.method
        names = list(methods.registry()) if asked == "all" else asked.split(",")
        source = Path(self.config.data or str(self.config.files.list)).name.replace(":", "-")
        out = self.out or Path("runs") / f"{source}-{asked}"
        count = 1 if self.seeds is None else self.seeds
        if count < 1:
            raise UserError(f"--seeds {count}: at least one seed must be trained")
        seeds = range(self.config.seed, self.config.seed + count)
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
        print_table([run.result for run in runs])
        if not is_first_process():
            return
        print(f"written to {out}")
        if len(runs) > 1:
            from longtail.reporting.page import report

            print(f"accuracy by class, head to tail: {report(runs, out / 'report.html')}")
