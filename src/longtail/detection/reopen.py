"""What can be asked of a finished detector: scored anew in any way, and shown; no training."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeVar

from PIL import Image

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.progress import log_progress
from longtail.detection import pictures
from longtail.detection.average_precision import Detections
from longtail.detection.config import DetectionConfig, Tde
from longtail.detection.data.annotations import Picture
from longtail.detection.data.dataset import Categories, DetectionSet, Splits, load
from longtail.detection.network.detector import build_detector
from longtail.detection.predict import (
    Source,
    detect,
    evaluate_detector,
    in_pixels,
    predict,
    prepare_images,
    source_of,
)
from longtail.detection.run import DetectionResult, DetectionRun, DetectorCost, digest, make_result
from longtail.nn.heads import check_alpha
from longtail.training.loop import launch
from longtail.training.model import load_weights

T = TypeVar("T")
OwnSplits = Splits | Path | str | None
"""A run's own data: loaded already, or its place if it was moved; None where it lay."""


class OpenDetector:
    """A finished run with its detector, opened once; its data where they are asked for.

    Args:
        folder: of the run.
        data: its splits if they are loaded already, or the place that they were moved to.
        machine: where it runs now; where it was trained may be gone.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        data: OwnSplits = None,
        machine: MachineConfig | None = None,
    ) -> None:
        self.run = DetectionRun.open(folder)
        self.config, self.stored = self.run.config, self.run.result
        self.categories, self._data = self.run.categories, data
        self.fabric = launch(machine or MachineConfig())
        detector = build_detector(self.config, self.categories, weights=False)
        source = f"{self.run.folder}/model.safetensors"
        load_weights(detector, self.run.load_model(), source)
        self.detector = detector.to(self.fabric.device)

    @cached_property
    def splits(self) -> Splits:
        """What it was trained and judged on, which images of one's own do not need."""
        if isinstance(self._data, tuple):
            data = self._data
        else:
            config = self.run.with_data(self._data)
            try:
                data = load(config.data, config.files.root)
            except UserError as error:
                if self._data is not None:
                    raise
                raise UserError(
                    f"{self.run.missing_data(error)}. Images of your own need no data: longtail "
                    "detect predict RUN IMAGES"
                ) from error
        if digest(data) != self.stored["subset_sha256"]:
            raise UserError(
                f"{self.run.folder} was trained or judged on other images than {self.config.data} "
                "holds now"
            )
        return data

    @property
    def train(self) -> DetectionSet:
        """What it was trained on."""
        return self.splits[0]

    @property
    def val(self) -> DetectionSet:
        """What it was judged on."""
        return self.splits[1]

    def scored(self, tde: Tde | None = None, alpha: float | None = None) -> DetectionConfig:
        """The run's configuration with another way of scoring; None leaves it as it is."""
        config = self.config
        tde = tde or (config.tde if alpha is None or config.tde != "off" else "background-exempt")
        if tde == "off" and alpha is not None:
            raise UserError("--tde off removes nothing, so that --alpha has no meaning: pass one")
        if tde == "off":
            return replace(config, method=config.training)
        if config.row.head == "linear":
            raise UserError(
                f"{config.method} has a linear head, without a direction to subtract: it takes "
                "only --tde off. Methods that take more: cosine, capsule, deconfound"
            )
        asked = {"tde": tde} if alpha is None else {"tde": tde, "alpha": check_alpha(alpha)}
        return replace(
            config,
            method=f"{config.training}-tde",
            inference=replace(config.inference, **asked),
        )

    @cached_property
    def _source(self) -> Source:
        return source_of(self.detector, self.config, self.val, self.fabric)

    def evaluate(self, tde: Tde | None = None, alpha: float | None = None) -> DetectionResult:
        """The result on the validation split; writes nothing."""
        result = self.evaluate_as(self.scored(tde, alpha))
        assert result is not None  # the only process is the first one
        return result

    def evaluate_as(self, config: DetectionConfig) -> DetectionResult | None:
        """The same for a whole configuration; every rank must ask, and only the first is told."""
        measured = evaluate_detector(self.detector, config, self.val, self.fabric, self._source)
        if self.fabric.global_rank:
            return None
        cost = DetectorCost.from_json(self.stored)
        return make_result(config, self.splits, measured, self.detector, cost)

    def sweep(
        self, alphas: Sequence[float], tde: Tde = "background-exempt"
    ) -> Iterator[DetectionResult]:
        """The result at each alpha, one after the other."""
        return (self.evaluate(tde, alpha) for alpha in alphas)

    def faults(self, images: Sequence[T], opened: Callable[[T], DetectionSet]) -> list[str | None]:
        """Why each of `images` cannot be looked at: not wholly readable, or of no usable shape.

        Args:
            images: paths, or whatever stands for one.
            opened: gives an image as a data set.
        """

        def fault(image: T) -> str | None:
            try:
                alone = opened(image)
                prepare_images(self.config, alone).size(0)
                alone[0]
            except UserError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(max(1, self.config.machine.workers)) as pool:
            return list(log_progress("checked", pool.map(fault, images), len(images)))

    def detections(
        self, config: DetectionConfig, data: DetectionSet, images: Sequence[int] | None = None
    ) -> Iterator[Detections]:
        """Detections in `data`, scored as `config` says."""
        seen = predict(self.detector, config, data, self.fabric, images)
        return log_progress("looked at", seen, len(data) if images is None else len(images))

    def compare(
        self, config: DetectionConfig, data: DetectionSet, images: Sequence[int], least_score: float
    ) -> Iterator["DrawnPair"]:
        """Each image without and with TDE, and as annotated where it is."""
        if not 0 <= least_score <= 1:
            raise UserError(f"--least-score {least_score:g} must be from 0 to 1, as scores are")
        if not images:
            return
        data = data.only(images)
        ways = {self.config.training: self.scored("off")}
        if config.tde != "off":
            ways[f"{config.method}, alpha {config.inference.alpha:g}"] = config
        seen = self._seen(ways.values(), data, least_score)
        for number, found in enumerate(log_progress("drawn", seen, len(data))):
            image, target = data[number]
            shown = dict(zip(ways, found, strict=True))
            if len(target["labels"]):
                shown["annotated"] = pictures.truth(target)
            drawn = [
                pictures.draw(image, each, self.categories, least_score=least_score)
                for each in shown.values()
            ]
            titles = [f"{name}: {len(each.labels)}" for name, each in shown.items()]
            yield DrawnPair(pictures.side_by_side(drawn, titles), len(found[-1].labels))

    def _seen(
        self, ways: Iterable[DetectionConfig], data: DetectionSet, least_score: float
    ) -> Iterator[tuple[Detections, ...]]:
        """Each image of `data` scored in all `ways`, a batch at a time: no image waits for all.

        Without the detections that are not drawn, so that their masks are not pasted either.
        """
        source = source_of(self.detector, self.config, data, self.fabric)
        least = max(least_score, self.config.inference.score_threshold)
        asked = [way.with_options(score_threshold=least) for way in ways]
        order = source.data.order(range(len(data)), self.config.train.batch_size)
        for numbers, batch in zip(order, source.batches(order), strict=True):
            scored = (
                detect(self.detector.score_by(way).eval(), batch, self.fabric) for way in asked
            )
            found = [list(in_pixels(each, batch, data, numbers)) for each in scored]
            yield from zip(*found, strict=True)


class DrawnPair(NamedTuple):
    """An image with what was found in it."""

    picture: Image.Image
    detections: int
    """Scored as asked for."""


def of_files(paths: Iterable[Path], categories: Categories) -> DetectionSet:
    """Images without annotations, as a data set."""
    return DetectionSet(
        tuple(_picture(i, path) for i, path in enumerate(paths, start=1)), categories, {}
    )


def _picture(number: int, path: Path) -> Picture:
    try:
        with Image.open(path) as image:
            width, height = image.size
    except (OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} is not an image that can be read: {error}") from error
    return Picture(
        id=number,
        path=path,
        height=height,
        width=width,
        absent=None,
        unfinished=frozenset(),
        instances=(),
    )
