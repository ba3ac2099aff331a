"""Commands that make something else of what was trained."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from longtail.core.config import DataConfig


def _options(files: DataConfig) -> dict[str, Any]:
    """What of `files` was asked for, as `load` takes it."""
    usual = vars(DataConfig())
    return {name: value for name, value in vars(files).items() if value != usual[name]}


@dataclass(frozen=True)
class Embed:
    """Write the features of a trained network as an .npz, for any classifier to start from."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a finished run."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("features.npz")
    """The file."""
    data: str = ""
    """Images to take the features of; those it was trained on by default."""
    files: DataConfig = field(default_factory=DataConfig)

    examples = """
      longtail embed runs/cifar100-lt-100-baseline -o features/cifar100-lt.npz
      longtail embed runs/tiny --data ~/data/coco-small --image-size 64 -o features/boxes.npz
      longtail train features/boxes.npz --method deconfound-tde"""

    def run(self) -> None:
        """Write the file."""
        from longtail.serving.embeddings import embed

        out = embed(self.folder, self.out, data=self.data or None, **_options(self.files))
        print(f"written to {out}")
