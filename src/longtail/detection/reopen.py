"""Finished detectors: evaluated with any scoring, used for predictions, and drawn."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from PIL import Image

from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.core.progress import log_progress
from longtail.data.decoding.orientation import upright_size
from longtail.detection import pictures
from longtail.detection.average_precision import Detections
from longtail.detection.config import DetectionConfig, StageAverage, Tde
from longtail.detection.cosines import COSINE_IMAGES, average_by_class, object_cosines
from longtail.detection.data.annotations import Picture
from longtail.detection.data.dataset import Categories, DetectionSet, Splits, load
from longtail.detection.data.feeds import Feed
from longtail.detection.network.detector import build_detector
from longtail.detection.predict import (
    detect,
    evaluate_detector,
    open_feed,
    predict,
    prepare_images,
    rescale,
)
from longtail.detection.run import DetectionResult, DetectionRun, DetectorCost, digest, make_result
from longtail.nn.heads import check_alpha
from longtail.training.launch import launch
from longtail.training.model import load_weights

T = TypeVar("T")
OwnSplits = Splits | Path | str | None
"""The data of a run: loaded already, or the place it was moved to; None if it was not moved."""


class OpenDetector:
    """A finished run with its detector on `machine`.

    The `data` of the constructor is the run's own, loaded when it is needed. The `data` of
    `predict` and `compare` is any set of images.
    """

    def __init__(
        self, folder: Path | str, *, data: OwnSplits = None, machine: MachineConfig | None = None
    ) -> None:
        self.run = DetectionRun.open(folder)
        self.config, self.stored = self.run.config, self.run.result
        self.categories, self._data = self.run.categories, data
        self.fabric = launch(machine or MachineConfig())
        detector = build_detector(self.config, self.categories, fresh=False)
        load_weights(detector, self.run.load_model(), f"{self.run.folder}/model.safetensors")
        self.detector = detector.to(self.fabric.device)

    @cached_property
    def splits(self) -> Splits:
        """Training and validation split of the run; predictions on other images need neither."""
        data = self._data
        if not isinstance(data, tuple):
            config = self.run.with_data(data)
            try:
                data = load(config.data, config.files.root)
            except UserError as error:
                if self._data is not None:
                    raise
                raise UserError(
                    f"{self.run.missing_data(error)}. Predictions on your own images do not need "
                    "it: longtail detect predict RUN IMAGES"
                ) from error
        if digest(data) != self.stored["subset_sha256"]:
            raise UserError(
                f"{self.run.folder} was trained or evaluated on other images than "
                f"{self.config.data} has now: restore them"
            )
        return data

    @property
    def train(self) -> DetectionSet:
        """Training split of the run."""
        return self.splits[0]

    @property
    def val(self) -> DetectionSet:
        """Validation split of the run."""
        return self.splits[1]

    def change_scoring(
        self,
        tde: Tde | None = None,
        alpha: float | None = None,
        average: StageAverage | None = None,
    ) -> DetectionConfig:
        """Return the run's configuration with another scoring; None keeps the run's own."""
        config = self.config if average is None else self.config.with_options(average=average)
        tde = tde or (config.tde if alpha is None or config.tde != "off" else "background-exempt")
        if tde == "off" and alpha is not None:
            raise UserError("--tde off removes nothing, so --alpha has no effect: pass only one")
        if tde == "off":
            return replace(config, method=config.training)
        if config.row.head == "linear":
            raise UserError(
                f"{config.method} has a linear head, without a direction to subtract: it supports "
                "only --tde off. These methods support TDE: cosine, capsule, deconfound"
            )
        options = {"tde": tde} if alpha is None else {"tde": tde, "alpha": check_alpha(alpha)}
        inference = replace(config.inference, **options)
        return replace(config, method=f"{config.training}-tde", inference=inference)

    @cached_property
    def _feed(self) -> Feed:
        return open_feed(self.detector, self.config, self.val, self.fabric)

    def evaluate(
        self,
        tde: Tde | None = None,
        alpha: float | None = None,
        average: StageAverage | None = None,
    ) -> DetectionResult | None:
        """Evaluate on the validation split; write nothing. Ranks other than 0 return None."""
        return self.evaluate_as(self.change_scoring(tde, alpha, average))

    def evaluate_as(self, config: DetectionConfig) -> DetectionResult | None:
        """Evaluate with the scoring of `config`, on every rank; all but rank 0 return None."""
        measured = evaluate_detector(self.detector, config, self.val, self.fabric, self._feed)
        if self.fabric.global_rank:
            return None
        cost = DetectorCost.from_json(self.stored)
        return make_result(config, self.splits, measured, self.detector, cost)

    @cached_property
    def cosines(self) -> tuple[float, tuple[float | None, ...]]:
        """Mean cos(x, d) over training objects, and over the validation objects of each class.

        Training objects are those of the first images only. The head must be normalised.
        """
        train = self.train.select(range(min(COSINE_IMAGES, len(self.train))))
        found = []
        for data, feed in (
            (train, open_feed(self.detector, self.config, train, self.fabric)),
            (self.val, self._feed),
        ):
            order = feed.data.split_batches(range(len(data)), self.config.train.batch_size)
            found.append(object_cosines(self.detector, feed, order, self.fabric))
        (cosines, _), (own, labels) = found
        return cosines.mean().item(), average_by_class(own, labels, len(self.categories.ids))

    def sweep(
        self,
        alphas: Sequence[float],
        tde: Tde = "background-exempt",
        average: StageAverage | None = None,
    ) -> Iterator[DetectionResult | None]:
        """Return an iterator of the result at each alpha; ranks other than 0 get None.

        Raises:
            UserError: at once, if an alpha or the detector does not allow it.
        """
        ways = [self.change_scoring(tde, alpha, average) for alpha in alphas]
        return map(self.evaluate_as, ways)

    def find_faults(
        self, images: Sequence[T], open_image: Callable[[T], DetectionSet]
    ) -> list[str | None]:
        """Return why each image cannot be used (unreadable, or too narrow), None if it can.

        `images` are paths or other values, which `open_image` opens as a data set.
        """

        def find_fault(image: T) -> str | None:
            try:
                alone = open_image(image)
                prepare_images(self.config, alone).compute_size(0)
                alone[0]
            except UserError as error:
                return str(error)
            return None

        with ThreadPoolExecutor(max(1, self.config.machine.workers)) as pool:
            return list(log_progress("checked", pool.map(find_fault, images), len(images)))

    def predict(
        self, config: DetectionConfig, data: DetectionSet, images: Sequence[int] | None = None
    ) -> Iterator[Detections]:
        """Yield the detections in `data` with the scoring of `config`, by default in all images."""
        predictions = predict(self.detector, config, data, self.fabric, images)
        total = len(data) if images is None else len(images)
        return log_progress("predicted", predictions, total)

    def compare(
        self, config: DetectionConfig, data: DetectionSet, images: Sequence[int], least_score: float
    ) -> Iterator[tuple[Image.Image, int]]:
        """Draw each image without TDE, with TDE, and with its annotations if it has any.

        Also yield its number of detections with the scoring of `config`.
        """
        check_least_score(least_score)
        if not images:
            return
        data = data.select(images)
        ways = {self.config.training: self.change_scoring("off")}
        if config.tde != "off":
            ways[f"{config.method}, alpha {config.inference.alpha:g}"] = config
        predictions = self._predict_in_ways(ways.values(), data, least_score)
        for number, detections in enumerate(log_progress("drawn", predictions, len(data))):
            image, target = data[number]
            shown = dict(zip(ways, detections, strict=True))
            if len(target["labels"]):
                shown["annotated"] = pictures.convert_target(target)
            drawn = [
                pictures.draw(image, each, self.categories, least_score=least_score)
                for each in shown.values()
            ]
            titles = [f"{name}: {len(each.labels)}" for name, each in shown.items()]
            yield pictures.join_pictures(drawn, titles), len(detections[-1].labels)

    def _predict_in_ways(
        self, ways: Iterable[DetectionConfig], data: DetectionSet, least_score: float
    ) -> Iterator[tuple[Detections, ...]]:
        """Yield each image's detections in all `ways`; drop low scores before pasting masks."""
        feed = open_feed(self.detector, self.config, data, self.fabric)
        least = max(least_score, self.config.inference.score_threshold)
        configs = [way.with_options(score_threshold=least) for way in ways]
        order = feed.data.split_batches(range(len(data)), self.config.train.batch_size)
        for numbers, batch in zip(order, feed.read(order), strict=True):
            detections = []
            for config in configs:
                output = detect(self.detector.set_scoring(config).eval(), batch, self.fabric)
                detections.append(list(rescale(output, batch, data, numbers)))
            yield from zip(*detections, strict=True)


def check_least_score(least_score: float) -> None:
    """Refuse a least score outside 0 to 1."""
    if not 0 <= least_score <= 1:
        raise UserError(f"--least-score {least_score:g} must be from 0 to 1, like the scores")


def open_files(paths: Iterable[Path], categories: Categories) -> DetectionSet:
    """Open images without annotations as a data set; only their sizes are read."""
    opened = []
    for number, path in enumerate(paths, start=1):
        try:
            with Image.open(path) as image:
                width, height = upright_size(image)
        except (OSError, Image.DecompressionBombError) as error:
            message = f"{path} is not a readable image ({error}): repair or remove it"
            raise UserError(message) from error
        opened.append(Picture(id=number, path=path, height=height, width=width))
    return DetectionSet(tuple(opened), categories, {})
