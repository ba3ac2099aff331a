"""A small model that stores what it knows of its certainty, and images for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from helpers import join_parts
from longtail.core.config import Config
from longtail.data.base import Split
from longtail.evaluation.stored_features import StoredFeatures
from longtail.evaluation.trust import describe_trust
from longtail.methods.base import HeldOut, Model, compute_centroids
from longtail.nn.backbones import Identity
from longtail.nn.heads import Head, NormalisedHead
from longtail.serving.model import ModelDescription, ServedModel
from longtail.serving.network import TorchNetwork
from longtail.serving.predictor import Predictor
from longtail.training.model import Blueprint
from simulated import simulate, skewed_counts

NAMES = tuple(f"class {i}" for i in range(8))
COUNTS = skewed_counts(8, 50, 200)
HELD_OUT = simulate([max(4, n // 5) for n in COUNTS.images], seed=1)


def trusted_model(
    head: Head,
    *,
    classes: int = 8,
    means: bool = True,
    trust: bool = True,
    held_out: bool = False,
) -> ServedModel:
    """A trained head on Gaussian features, of the first `classes`, with its description."""
    images = [n if c < classes else 0 for c, n in enumerate(COUNTS.images)]
    train = simulate(images)
    x, y = train.features.float(), train.labels
    head.reset_parameters(torch.Generator().manual_seed(0))
    head.train()
    solver = torch.optim.Adam(head.parameters(), 0.02)
    for _ in range(150):
        torch.nn.functional.cross_entropy(head(x), y).backward()
        solver.step()
        solver.zero_grad()
    head.eval().requires_grad_(False)
    parts = join_parts(Split(x, y), None, Split(x, y), classes, name="gauss")
    data = replace(parts, classes=NAMES[:classes])
    own = HELD_OUT.labels < classes
    held, labels = HELD_OUT.features[own].float(), HELD_OUT.labels[own]
    centroids = compute_centroids(x, y, classes) if means else None
    found = describe_trust(head(held), held, labels, data.counts, class_means=centroids)
    alpha = float(head.alpha) if isinstance(head, NormalisedHead) else None
    about = ModelDescription(
        blueprint=Blueprint.of(Config(backbone="identity"), head, data),
        classes=data.classes,
        counts=data.counts.images,
        alpha=alpha,
        dial=alpha is not None,
        metrics={},
        training={"method": "gauss"},
        version="test",
        trust=found if trust else None,
    )
    stored = StoredFeatures(centroids, HeldOut(held.half(), labels) if held_out else None)
    return ServedModel(Model(Identity(16), head), about, stored)


def predictor(served: ServedModel) -> Predictor:
    return Predictor(served.about, TorchNetwork(served, "cpu"))


def without_trust(served: ServedModel) -> Predictor:
    about = replace(served.about, trust=None)
    model = Model(served.backbone, served.head)
    return predictor(ServedModel(model, about, served.stored))


def noise(folder: Path, images: int, size: int = 16) -> list[str]:
    """Files of random pixels."""
    random = np.random.RandomState(0)
    folder.mkdir(parents=True)
    for i in range(images):
        pixels = random.randint(255, size=(size, size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return sorted(map(str, folder.iterdir()))
