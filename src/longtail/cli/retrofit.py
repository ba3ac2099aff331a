"""`longtail retrofit`: the TDE version of a trained timm or torchvision classifier."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from longtail.cli.embed import _options
from longtail.cli.output import print_lines
from longtail.core.config import DataConfig
from longtail.core.errors import UserError


@dataclass(frozen=True)
class RetrofitCommand:
    """Give a trained timm or torchvision classifier its TDE version, without training."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """Its weights: a state dict as .pt, .pth or .safetensors."""
    data: str = ""
    """What it was trained on: images, or an .npz of the features that its last layer takes."""
    model: str = ""
    """The network's name in timm or torchvision; not needed with features."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("runs/retrofit")
    """Folder for the new model, which longtail predict and export take, and the result."""
    pixels: Literal["imagenet", "data"] = "imagenet"
    """How pixels were normalised in training: ImageNet's mean and deviation, or the data's own."""
    files: DataConfig = field(default_factory=DataConfig)

    examples = """
      longtail retrofit resnet50.pth --model resnet50 --data photos/ --image-size 224
      longtail retrofit head.safetensors --data features.npz -o runs/tde
      longtail predict runs/retrofit holiday/ --alpha 1"""

    def run(self) -> None:
        """Print both heads and the verdict."""
        from longtail.evaluation import tables
        from longtail.serving.retrofit import retrofit

        if not self.data:
            raise UserError("which images was it trained on? Pass them as --data")
        made = retrofit(
            self.checkpoint,
            self.data,
            model=self.model,
            out=self.out,
            pixels=self.pixels,
            **_options(self.files),
        )
        told = made.to_json()
        rows = {"original": told["before"], f"TDE, alpha {told['alpha']:g}": told["after"]}
        lines = [
            [name, *("-" if value is None else f"{value:.1f}" for value in figures.values())]
            for name, figures in rows.items()
        ]
        print_lines(["head", *tables.columns(uneven=True)], lines)
        print(made.verdict)
        print(f"written to {self.out}")
