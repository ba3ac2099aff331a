"""`longtail eval`: evaluate a run or an exported model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from longtail.cli.output import is_first_process, show
from longtail.core.alphas import parse_number


@dataclass(frozen=True)
class Eval:
    """Evaluate a run on its own data, or any model on other labelled data of the same classes."""

    model: Annotated[Path, Positional, arg(metavar="RUN_OR_MODEL")]
    """Folder of a finished run, a folder written by longtail retrofit or save_pretrained, or an
    exported file."""
    alpha: str | None = None
    """A number, or auto: the run's own choice, else one made on its held-out data, else one made
    without labels. By default the model's own alpha."""
    data: str | None = None
    """Labelled data whose class names match the model's: its test part is evaluated, else its
    validation part, else all of it, without images that the run was trained on. By default the
    run's own data; if that has moved, its new location."""
    background: str | None = None
    """Class that keeps its total effect (Eq. 9); the model's own by default."""
    flips: bool = False
    """Also evaluate with the mean logits of every image and its mirror image; for a run on its own
    data."""
    root: Path | None = None
    """Folder that the paths of a table or list are relative to, if not its own. Without --data, the
    folder that the run's own data was moved to."""
    json: bool = False
    """Print everything as JSON, with a row for each class and the confusion matrix."""

    examples = """
      longtail eval runs/demo/deconfound-tde/s0
      longtail eval runs/demo/deconfound-tde/s0 --alpha 0.5 --json
      longtail eval photos.onnx --data new-photos/"""

    def run(self) -> None:
        """Print tables or JSON."""
        from longtail.evaluation.result import round_floats
        from longtail.serving.evaluate import evaluate

        alpha: Any = self.alpha
        if alpha not in (None, "auto"):
            alpha = parse_number("--alpha", alpha, "a number or auto")
        places = {"root": self.root, "background": self.background, "flips": self.flips}
        result = evaluate(self.model, self.data, alpha, **places)  # type: ignore[arg-type]
        if not is_first_process():
            return
        if self.json:
            print(json.dumps(result.to_json() | round_floats(result.metrics.tables())))
        else:
            show(str(result))
