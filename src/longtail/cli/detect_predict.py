"""`longtail detect predict`: detect objects in images."""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from longtail.cli.arguments import Device, MovedData, OptionalImages, Out, RunFolder, check_writable
from longtail.cli.image_arguments import list_images
from longtail.cli.output import refuse_ranks, show
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.names import count_noun
from longtail.detection.config import DetectionConfig, Tde

if TYPE_CHECKING:
    from PIL.PngImagePlugin import PngInfo

    from longtail.detection.data.dataset import DetectionSet
    from longtail.detection.reopen import OpenDetector

T = TypeVar("T")
SIGNATURE = "longtail detect predict"
"""What every drawing names as its software."""
ENTRIES = rb'\A\[\n(\n\]|\{"image_id": )'
"""How our files of detections begin: each entry has a line, as in no other program's."""


@dataclass(frozen=True)
class DetectPredict:
    """Detect objects in images: draw them without and with TDE, or write an LVIS result file.

    Unreadable images are skipped and named on standard error; the exit code is then 1.
    """

    folder: RunFolder
    images: OptionalImages = ()
    """Files, folders, quoted globs, or - to read paths from standard input; by default images of
    the run's validation part."""
    out: Out = Path("predictions")
    """Folder for the drawings."""
    count: int = 8
    """Number of images to draw of the run's validation part, or of those that --annotations
    lists."""
    least_score: float = 0.3
    """Draw only detections with at least this score."""
    lvis_json: Path | None = None
    """Write all detections to this result file, in the format of LVIS's evaluation server, and draw
    nothing. For IMAGES the file also holds file and class names."""
    annotations: Path | None = None
    """LVIS or COCO file that lists the images, such as LVIS's test images."""
    image_folder: Path | None = None
    """Folder of the images that --annotations lists; by default images/ beside that file."""
    tde: Tde | None = None
    """off, plain or background-exempt; the run's own by default."""
    alpha: float | None = None
    """How much of the indirect effect to remove; the run's own by default."""
    data: MovedData = None
    device: Device = "auto"

    examples = """
      longtail detect predict runs/shapes-lvis-deconfound-tde-s0 --out pictures
      longtail detect predict runs/coco photo.jpg more/ --least-score 0.5
      longtail detect predict runs/lvis --lvis-json result.json
      longtail detect predict runs/lvis --lvis-json test.json \\
          --annotations lvis_v0.5_image_info_test.json --image-folder images"""

    def run(self) -> None:
        """Write the drawings or the result file."""
        from longtail.detection.reopen import OpenDetector

        refuse_ranks("detect predict")
        self._check_options()
        machine = MachineConfig(device=self.device)
        finished = OpenDetector(self.folder, data=self.data, machine=machine)
        config = finished.change_scoring(self.tde, self.alpha)
        data, complete = self._read_images(finished)
        if self.lvis_json:
            self._write_detections(self.lvis_json, finished, config, data)
        else:
            self._draw(finished, config, data)
        if not complete:
            sys.exit(1)

    def _check_options(self) -> None:
        """Refuse options that do not go together, and places that cannot be written to."""
        from longtail.core.files import check_own
        from longtail.detection.reopen import check_least_score

        if self.annotations and self.images:
            raise UserError("--annotations lists the images: pass it, or IMAGES, not both")
        if self.data and (self.images or self.annotations):
            raise UserError("--data locates the run's own data: leave it out for other images")
        if self.image_folder and not self.annotations:
            raise UserError(
                "--image-folder holds the images that --annotations lists: pass that too, or the "
                "folder as IMAGES"
            )
        if self.count != DetectPredict.count and (self.images or self.lvis_json):
            raise UserError(
                f"--count {self.count} limits the validation images to draw: IMAGES and "
                "--lvis-json use all images. Leave it out"
            )
        drawing = {
            "--out": self.out != DetectPredict.out,
            "--least-score": self.least_score != DetectPredict.least_score,
        }
        if self.lvis_json and any(drawing.values()):
            flag = next(flag for flag, given in drawing.items() if given)
            raise UserError(f"{flag} is for drawings, and --lvis-json draws nothing: pass one")
        if self.count < 1:
            raise UserError(f"--count {self.count}: must be at least 1")
        check_least_score(self.least_score)
        if self.lvis_json and self.lvis_json.is_dir():
            raise UserError(f"{self.lvis_json} is a folder: --lvis-json is the file to write")
        if self.lvis_json:
            check_writable(self.lvis_json, "--lvis-json", is_file=True)
            check_own(self.lvis_json, ENTRIES, "longtail detect predict")
        else:
            check_writable(self.out)

    def _write_detections(
        self,
        out: Path,
        finished: "OpenDetector",
        config: DetectionConfig,
        data: "DetectionSet",
    ) -> None:
        """Write all detections to an LVIS result file, and print how many."""
        from longtail.core.files import replace_atomically
        from longtail.detection.average_precision import lvis_json

        detections = lvis_json(data, finished.predict(config, data), named=bool(self.images))
        with replace_atomically(out) as path:
            lines = ",\n".join(map(json.dumps, detections))
            path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        show(f"{len(detections):,} detections in {count_noun(len(data), 'image')}: {out}")

    def _draw(
        self, finished: "OpenDetector", config: DetectionConfig, data: "DetectionSet"
    ) -> None:
        """Write drawings without and with TDE, and print how many."""
        from longtail.core.files import check_own, replace_atomically

        chosen = range(len(data) if self.images else min(self.count, len(data)))
        names = _number_duplicates(data.pictures[number].path.stem for number in chosen)
        targets = [self.out / f"{name}.png" for name in names]
        _check_not_inputs(targets, data)
        for target in targets:
            check_own(target, b"Software\x00" + SIGNATURE.encode(), "longtail detect predict")
        drawings = finished.compare(config, data, chosen, self.least_score)
        detections = 0
        for target, (picture, found) in zip(targets, drawings, strict=True):
            with replace_atomically(target) as path:
                picture.save(path, "png", pnginfo=_make_signature())
            detections += found
        show(
            f"{count_noun(len(chosen), 'picture')} in {self.out} with "
            f"{count_noun(detections, 'detection')} of score {self.least_score:g} or higher "
            "(--least-score)"
        )

    def _read_images(self, finished: "OpenDetector") -> tuple["DetectionSet", bool]:
        """Return the readable images, and whether these are all."""
        from longtail.detection.data.dataset import read
        from longtail.detection.reopen import open_files

        categories = finished.categories
        if self.annotations:
            folder = self.image_folder or self.annotations.parent / "images"
            data = read(self.annotations, folder, categories=categories, annotated=False)
            if not self.lvis_json:  # the others are not drawn
                data = data.select(range(min(self.count, len(data))))
            numbers = _skip_unreadable(finished, range(len(data)), lambda i: data.select([i]))
            return data.select(numbers), len(numbers) == len(data)
        if self.images:
            listed = list_images(self.images)
            files = [Path(name) for name in listed.files]
            paths = _skip_unreadable(finished, files, lambda path: open_files([path], categories))
            return open_files(paths, categories), len(paths) == len(files) and not listed.unread
        return finished.val, True


def _make_signature() -> "PngInfo":
    """Return the PNG text that marks a file as our drawing."""
    from PIL.PngImagePlugin import PngInfo

    signature = PngInfo()
    signature.add_text("Software", SIGNATURE)
    return signature


def _check_not_inputs(targets: Iterable[Path], data: "DetectionSet") -> None:
    """Raise an error if a file to write is one of the images."""
    existing = [target for target in targets if target.exists()]
    if not existing:
        return
    inputs = (picture.path for picture in data.pictures)
    known = {_identify(path) for path in inputs if path.exists()}
    for target in existing:
        if _identify(target) in known:
            raise UserError(f"{target} is an input and is not replaced: write to another place")


def _identify(path: Path) -> tuple[int, int]:
    """Return the device and the inode of a file, which all its names and links share."""
    found = path.stat()
    return found.st_dev, found.st_ino


def _skip_unreadable(
    finished: "OpenDetector", images: Sequence[T], read_image: Callable[[T], "DetectionSet"]
) -> list[T]:
    """Return the readable images; print why each other one was skipped."""
    faults = finished.find_faults(images, read_image)
    reasons = [fault for fault in faults if fault]
    if images and len(reasons) == len(images):
        raise UserError(f"none of these images can be read: {reasons[0]}")
    for reason in reasons:
        show(f"skipped: {reason}", file=sys.stderr)
    return [image for image, fault in zip(images, faults, strict=True) if not fault]


def _number_duplicates(names: Iterable[str]) -> list[str]:
    """Make names unique: the second x becomes x-2."""
    unique: dict[str, None] = {}
    for name in names:
        numbered = (f"{name}-{i}" for i in count(2))
        unique[next(each for each in chain([name], numbered) if each not in unique)] = None
    return list(unique)
