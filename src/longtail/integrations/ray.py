"""Ray Data: a class for `map_batches` that classifies or embeds images on many machines.

Shapes: B rows per batch, features (D,) float32.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from longtail.core.errors import UserError, unknown_error
from longtail.serving.answers import Prediction
from longtail.serving.predictor import load_model
from longtail.serving.user_inputs import Picture

Batch = dict[str, NDArray[Any]]
"""Columns (B, ...), as Ray Data passes them."""


class RayPredictor:
    """Replaces the images of a batch by predictions, or by embeddings.

        dataset.map_batches(
            RayPredictor,
            fn_constructor_args=["runs/birds"],
            compute=ray.data.ActorPoolStrategy(size=8),
            num_gpus=1,
        )

    Every actor loads the model once. Other columns stay. New ones are `class` and `probability`, or
    `embedding`, and `unreadable`: the reason why an image is unreadable, else empty. An unreadable
    image has no class, and NaN for every number. A model of several labels per image adds `labels`;
    its `class` is the most probable label, also below its threshold. A data set that has a column
    of such a name is refused.

    Args:
        model: what `longtail.load_model` reads; every machine must see it.
        column: column of the images: encoded bytes, pixels, paths, or the `{"bytes", "path"}` of
            Hugging Face's parquet files.
        outputs: `predictions` or `embeddings`.
        alpha: alpha to predict at; the model's own by default.
    """

    def __init__(
        self,
        model: str,
        column: str = "bytes",
        *,
        outputs: Literal["predictions", "embeddings"] = "predictions",
        alpha: float | None = None,
    ) -> None:
        kinds = ("predictions", "embeddings")
        if outputs not in kinds:
            raise unknown_error("outputs", outputs, kinds, " or ".join(kinds))
        self.model = load_model(model)
        if alpha is not None:
            self.model.alpha = alpha
        self.column = column
        self.outputs = outputs

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with new columns in place of the images."""
        if self.column not in batch:
            raise UserError(
                f"the data set has no column '{self.column}' but {', '.join(batch)}: pass the "
                "column of the images"
            )
        images = list(_read_pictures(batch[self.column]))
        kept = {name: values for name, values in batch.items() if name != self.column}
        made = self._predict(images) if self.outputs == "predictions" else self._embed(images)
        if taken := sorted(kept.keys() & made.keys()):
            raise UserError(
                f"the data set has a column '{taken[0]}', which would be replaced: rename it with "
                "dataset.rename_columns"
            )
        return {**kept, **made}

    def _predict(self, images: list[Picture]) -> Batch:
        found = list(self.model.stream(images, top=1))
        known = [row if isinstance(row, Prediction) else None for row in found]
        made = {
            "class": np.array([row.name if row else "" for row in known], dtype=object),
            "probability": np.array([row.probability if row else np.nan for row in known]),
            "unreadable": np.array(
                [row if isinstance(row, str) else "" for row in found], dtype=object
            ),
        }
        if self.model.thresholds is not None:
            made["labels"] = np.empty(len(known), dtype=object)  # of lists of any length
            for place, row in enumerate(known):
                made["labels"][place] = [name for name, _ in row.labels or ()] if row else []
        return made

    def _embed(self, images: list[Picture]) -> Batch:
        features, reasons = self.model.extract(images)
        readable = [place for place in range(len(images)) if place not in reasons]
        embedding = torch.full((len(images), features.shape[1]), torch.nan)
        embedding[readable] = features
        return {
            "embedding": embedding.numpy(),
            "unreadable": np.array(
                [reasons.get(place, "") for place in range(len(images))], dtype=object
            ),
        }


def _read_pictures(values: NDArray[Any]) -> Iterator[Picture]:
    """Yield what `Predictor.stream` takes; a missing image is b""."""
    for value in values:
        if isinstance(value, dict):
            value = value.get("bytes") or value.get("path")
        yield b"" if value is None else value
