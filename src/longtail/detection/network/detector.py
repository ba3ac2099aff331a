"""The whole detector: pyramid, proposals, cascade; batches in, losses or detections out."""

import torch
from torch import Tensor, nn

from longtail.core.seeding import stream
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD
from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import NO_LEAST, Canvas, DetectionBatch
from longtail.detection.data.dataset import Categories
from longtail.detection.network.cascade import Cascade, CascadeOutput
from longtail.detection.network.losses import rare_classes
from longtail.detection.network.proposals import Proposals
from longtail.detection.network.pyramid import Pyramid
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, Head, LinearHead


class Detector(nn.Module):
    """Cascade Mask R-CNN.

    In training mode a batch gives its losses by name, in evaluation mode its detections.
    """

    mean: Tensor
    deviation: Tensor
    canvas: Tensor
    """(2,) the least that images are put on, kept with the weights; zeros for none."""

    def __init__(
        self,
        pyramid: Pyramid,
        proposals: Proposals,
        cascade: Cascade,
        canvas: Canvas = NO_LEAST,
    ) -> None:
        super().__init__()
        self.pyramid, self.proposals, self.cascade = pyramid, proposals, cascade
        self.register_buffer("canvas", torch.tensor(canvas))
        for name, channels in (("mean", IMAGENET_MEAN), ("deviation", IMAGENET_STD)):
            pixel = 255 * torch.tensor(channels).view(3, 1, 1)
            self.register_buffer(name, pixel, persistent=False)

    def forward(self, batch: DetectionBatch) -> dict[str, Tensor] | CascadeOutput:
        pixels = (batch.images.float() - self.mean) / self.deviation
        pixels = pixels * self._inside(batch)  # the rest of the canvas is the mean colour
        maps = self.pyramid(pixels.contiguous(memory_format=torch.channels_last))
        proposed = self.proposals(maps, batch)
        if self.training:
            return {**proposed.losses, **self.cascade.losses(maps, proposed, batch)}
        return self.cascade.detect(maps, proposed, batch.sizes)

    def _inside(self, batch: DetectionBatch) -> Tensor:
        """(B, 1, H, W): 1 on the image, 0 on the rest of its canvas."""
        height, width = batch.images.shape[2:]
        rows = torch.arange(height, device=batch.sizes.device)[:, None]
        columns = torch.arange(width, device=batch.sizes.device)
        tall, wide = batch.sizes[:, 0, None, None, None], batch.sizes[:, 1, None, None, None]
        return ((rows < tall) & (columns < wide)).float()

    def score_by(self, config: DetectionConfig) -> "Detector":
        """Score detections as `config` asks, without training; gives itself."""
        cascade, asked = self.cascade, config.inference
        cascade.tde, cascade.alpha = config.tde, asked.alpha
        cascade.detections, cascade.score_threshold = asked.detections, asked.score_threshold
        return self


def build_detector(
    config: DetectionConfig,
    categories: Categories,
    *,
    weights: bool,
    images: int = 0,
    canvas: Canvas = NO_LEAST,
) -> Detector:
    """The detector of a run, initialised from its seed alone, on the CPU.

    `weights` says whether pretrained ones are wanted, if the configuration has them at all: not
    where a checkpoint follows. `images` are those of the training set, of which eql's threshold is
    a share, and `canvas` is that of all of them; what is not trained has no use for either.
    """
    model = config.model
    grouped = model.norm == "group"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(config.seed, "init"))
        pyramid = Pyramid(
            config.backbone,
            norm=model.norm,
            width=model.width,
            pretrained=model.pretrained,
            fetch=weights,
        )
        proposals = Proposals(model.width, model.proposals, model.anchor_scale)
        cascade = Cascade(
            lambda: _head(config, len(categories.ids) + 1),
            width=model.width,
            mask_classes=len(categories.ids) if model.masks == "class" else 1,
            grouped=grouped,
            rois=model.rois,
            canonical=56 * model.anchor_scale,  # 224 where anchors are torchvision's
            loss=config.row.loss,
            rare=rare_classes(categories.images, config.head.eql_share * images),
            focal_gamma=config.head.focal_gamma,
        )
    # what pads an image enters the statistics of its groups, so it must always be the same
    least = canvas if grouped else NO_LEAST
    detector = Detector(pyramid, proposals, cascade, least).score_by(config)
    return detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _head(config: DetectionConfig, outputs: int) -> Head:
    asked, dim, kind = config.head, config.model.features, config.row.head
    if kind == "linear":
        return LinearHead(dim, outputs)
    shared = {"tau": asked.tau, "momentum": asked.mean_momentum}
    usual = 2 if kind == "deconfound" else 1
    heads = usual if asked.heads is None else asked.heads
    if kind == "deconfound":
        return DeconfoundHead(dim, outputs, heads, gamma=asked.gamma, **shared)
    normalised = CosineHead if kind == "cosine" else CapsuleHead
    return normalised(dim, outputs, heads, **shared)
