"""`longtail export`: write the model of a run to a file."""

from dataclasses import dataclass
from typing import Literal

from longtail.cli.arguments import OptionalOut, RunFolder
from longtail.cli.output import refuse_ranks, show


@dataclass(frozen=True)
class Export:
    """Write the model of a run to a safetensors, ONNX or torch.export file.

    The file is compared with the run's own model before it is written, and gets a model card.
    """

    folder: RunFolder
    """Folder of a finished run, of longtail retrofit, or of save_pretrained."""
    to: Literal["safetensors", "onnx", "torch-export"] | None = None
    """File format; that of --out by default. ONNX needs pip install longtail[onnx]."""
    out: OptionalOut = None
    """File to write; METHOD with the format's suffix, in the current folder, by default."""
    alpha: float | None = None
    """Alpha to fold into the weights; the run's own by default."""
    alpha_input: bool = False
    """Keep alpha as a second input of the model instead."""
    background: str | None = None
    """Class that keeps its total effect (Eq. 9); the run's own by default."""

    examples = """
      longtail export runs/demo/deconfound-tde/s0 -o letters.safetensors
      longtail export runs/demo/deconfound-tde/s0 --to onnx --alpha 1.5
      longtail export runs/demo/deconfound-tde/s0 --alpha-input -o dial.onnx"""

    def run(self) -> None:
        """Write the file and print its path."""
        refuse_ranks("export")
        from longtail.serving.write import card_path, export

        path = export(
            self.folder,
            self.to,
            self.out,
            alpha=self.alpha,
            alpha_input=self.alpha_input,
            background=self.background,
        )
        card = card_path(path)
        show(f"written to {path}, agrees with the model in {self.folder}; model card: {card}")
