"""`longtail embed`: write the features of a trained network."""

from dataclasses import dataclass, field
from pathlib import Path

from longtail.cli.arguments import Out, RunFolder, find_changed_options
from longtail.core.config import DataConfig


@dataclass(frozen=True)
class Embed:
    """Write the features of a trained network to an .npz file, to train classifiers on."""

    folder: RunFolder
    out: Out = Path("features.npz")
    """File to write."""
    data: str = ""
    """Images to embed; by default those that the run was trained on."""
    files: DataConfig = field(default_factory=DataConfig)

    examples = """
      longtail embed runs/cifar100-lt-100-baseline -o features/cifar100-lt.npz
      longtail embed runs/tiny --data ~/data/coco-small --image-size 64 -o features/boxes.npz
      longtail train features/boxes.npz --method deconfound-tde"""

    def run(self) -> None:
        """Write the file and print its path."""
        from longtail.serving.embeddings import embed

        options = find_changed_options(self.files)
        out = embed(self.folder, self.out, data=self.data or None, **options)
        print(f"written to {out}")
