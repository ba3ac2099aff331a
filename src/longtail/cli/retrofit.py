"""`longtail retrofit`: add TDE to a trained classifier."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from longtail.cli.arguments import Out, check_writable, find_changed_options
from longtail.cli.output import print_lines, refuse_ranks, show
from longtail.core.config import DataConfig
from longtail.core.errors import UserError


@dataclass(frozen=True)
class RetrofitCommand:
    """Add TDE to a trained timm or torchvision classifier, without training."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """Weights of the classifier: a state dict as .pt, .pth or .safetensors."""
    data: str = ""
    """Its training data: images, or an .npz file of the inputs of its last layer."""
    model: str = ""
    """Name of the network in timm or torchvision; not needed if --data holds features."""
    out: Out = Path("runs/retrofit")
    """Folder for the new model, which longtail predict and export read, and for the result."""
    pixels: Literal["imagenet", "data"] = "imagenet"
    """Mean and deviation that normalised the pixels in training: ImageNet's, or the data's own."""
    files: DataConfig = field(default_factory=DataConfig)

    examples = """
      longtail retrofit resnet50.pth --model resnet50 --data photos/ --image-size 224
      longtail retrofit head.safetensors --data features.npz -o runs/tde
      longtail predict runs/retrofit holiday/ --alpha 1"""

    def run(self) -> None:
        """Print the accuracies before and after, and the verdict."""
        refuse_ranks("retrofit")
        from longtail.evaluation import tables
        from longtail.serving.retrofit import retrofit

        if not self.data:
            raise UserError("which images was it trained on? Pass them as --data")
        check_writable(self.out)
        options = find_changed_options(self.files)
        model = retrofit(
            self.checkpoint,
            self.data,
            model=self.model,
            out=self.out,
            pixels=self.pixels,
            **options,
        )
        result = model.to_json()
        rows = {"original": result["before"], f"TDE, alpha {result['alpha']:g}": result["after"]}
        lines = [[name, *figures.values()] for name, figures in rows.items()]
        print_lines(["head", *tables.columns(uneven=True)], lines)
        show(model.verdict)
        show(f"written to {self.out}")
