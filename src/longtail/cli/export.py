"""`longtail export`: write a finished run's model to a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from longtail.cli.arguments import RunFolder


@dataclass(frozen=True)
class Export:
    """Write a finished run's model to a file, checked against the run, with a card beside it."""

    folder: RunFolder
    """Folder of a finished run, of longtail retrofit, or of save_pretrained."""
    to: Literal["safetensors", "onnx", "torch-export"] = "safetensors"
    """Format. ONNX needs pip install longtail[onnx]."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """The file; METHOD with the format's suffix, in this folder, by default."""
    alpha: float | None = None
    """Folded into the weights, at no cost; the run's own by default."""
    alpha_input: bool = False
    """Leave alpha free, as a second input of the model."""

    examples = """
      longtail export runs/demo/deconfound-tde/s0 -o letters.safetensors
      longtail export runs/demo/deconfound-tde/s0 --to onnx --alpha 1.5
      longtail export runs/demo/deconfound-tde/s0 --to onnx --alpha-input -o dial.onnx"""

    def run(self) -> None:
        """Write it, and say where."""
        from longtail.serving.write import card_of, export

        path = export(
            self.folder, self.to, self.out, alpha=self.alpha, alpha_input=self.alpha_input
        )
        print(f"written to {path}, agrees with the run's model; its card: {card_of(path)}")
