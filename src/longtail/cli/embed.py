"""`longtail embed`: write the features of a network."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from longtail.cli.arguments import Out, find_changed_options
from longtail.cli.output import is_first_process, show
from longtail.core.config import DataConfig


@dataclass(frozen=True)
class Embed:
    """Write the features of a trained network to an .npz file, to train classifiers on.

    Torchrun divides the images among its processes, and the same command goes on after a stop.
    """

    folder: Annotated[Path | None, Positional, arg(metavar="RUN")] = None
    """Folder of a finished run; not needed with --weights or --pretrained."""
    out: Out = Path("features.npz")
    """File to write."""
    data: str = ""
    """Images to embed; by default those that the run was trained on. Files are resized as for
    training unless --image-size or --interpolation is given."""
    weights: str | None = None
    """Weights to use in place of a run: a file, or `pretrained` for the network's published ones,
    which --pretrained means too."""
    backbone: str | None = None
    """Network of the weights; by default taken from the file name."""
    files: DataConfig = field(default_factory=DataConfig)

    examples = """
      longtail embed runs/cifar100-lt-100-baseline -o features/cifar100-lt.npz
      longtail embed runs/tiny --data ~/data/coco-small --image-size 64 -o features/boxes.npz
      longtail embed --data photos/ --weights tf_efficientnet_lite0.safetensors
      longtail embed --data photos/ --backbone resnet18 --pretrained
      longtail train features/boxes.npz --method deconfound-tde"""

    def run(self) -> None:
        """Write the file and print its path."""
        from longtail.serving.embeddings import embed

        options = find_changed_options(self.files)
        start = {"weights": self.weights, "backbone": self.backbone}
        out = embed(self.folder, self.out, data=self.data or None, **start, **options)
        if is_first_process():
            show(f"written to {out}")
