"""The whole detector: pyramid, proposals and cascade."""

import torch
from torch import Tensor, nn

from longtail.core.seeding import stream
from longtail.data.formats.imagenet_lt import IMAGENET_MEAN, IMAGENET_STD
from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import NO_CANVAS, CanvasSize, DetectionBatch
from longtail.detection.data.dataset import Categories
from longtail.detection.network.cascade import Cascade, CascadeOutput
from longtail.detection.network.proposals import Proposals
from longtail.detection.network.pyramid import Pyramid
from longtail.detection.network.sigmoid import PRIORS, SigmoidHead, find_rare_classes
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, Head, LinearHead
from longtail.nn.published import InputConfig, describe_inputs


class Detector(nn.Module):
    """Cascade Mask R-CNN.

    In training mode it returns the losses of a batch by name, in evaluation mode its detections.
    """

    mean: Tensor
    deviation: Tensor
    canvas: Tensor
    """(2,) least canvas of an image, saved with the weights; zeros for none."""

    def __init__(
        self,
        pyramid: Pyramid,
        proposals: Proposals,
        cascade: Cascade,
        canvas: CanvasSize,
        inputs: InputConfig | None = None,
    ) -> None:
        super().__init__()
        self.pyramid, self.proposals, self.cascade = pyramid, proposals, cascade
        self.register_buffer("canvas", torch.tensor(canvas))
        pixels = (inputs.mean, inputs.std) if inputs else (IMAGENET_MEAN, IMAGENET_STD)
        for name, channels in zip(("mean", "deviation"), pixels, strict=True):
            pixel = 255 * torch.tensor(channels).view(3, 1, 1)
            self.register_buffer(name, pixel, persistent=False)

    def forward(self, batch: DetectionBatch) -> dict[str, Tensor] | CascadeOutput:
        maps = self.compute_maps(batch)
        proposals = self.proposals(maps, batch)
        if self.training:
            return {**proposals.losses, **self.cascade.compute_losses(maps, proposals, batch)}
        return self.cascade.detect(maps, proposals, batch.sizes)

    def compute_maps(self, batch: DetectionBatch) -> dict[str, Tensor]:
        """Return the pyramid's feature maps of a batch."""
        pixels = (batch.images.float() - self.mean) / self.deviation
        tall, wide = batch.sizes[:, 0, None, None, None], batch.sizes[:, 1, None, None, None]
        rows = torch.arange(pixels.shape[2], device=pixels.device)[:, None] < tall
        columns = torch.arange(pixels.shape[3], device=pixels.device) < wide
        pixels = pixels * (rows & columns).float()  # the rest of the canvas gets the mean colour
        maps: dict[str, Tensor] = self.pyramid(pixels.contiguous(memory_format=torch.channels_last))
        return maps

    def set_scoring(self, config: DetectionConfig) -> "Detector":
        """Take the scoring options of `config`, which need no training; return the detector."""
        cascade, inference = self.cascade, config.inference
        cascade.tde, cascade.alpha = config.tde, inference.alpha
        cascade.average = inference.average
        cascade.detections = inference.detections
        cascade.score_threshold = inference.score_threshold
        return self


def build_detector(
    config: DetectionConfig,
    categories: Categories,
    *,
    fresh: bool,
    images: int = 0,
    canvas: CanvasSize = NO_CANVAS,
) -> Detector:
    """Build the detector of a run on the CPU; its initial weights depend only on the seed.

    With `fresh` the backbone starts from the weights that `config` names; without, a checkpoint
    must follow.
    Training needs the number of training `images`, which eql's threshold refers to, and a `canvas`
    that fits all of them.
    """
    model, width = config.model, config.model.width
    group_norm = model.norm == "group"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(config.seed, "init"))
        start = config.start if fresh else None
        pyramid = Pyramid(
            config.backbone,
            norm=model.norm,
            width=width,
            weights=start,
            freeze=config.start is not None,
        )
        proposals = Proposals(width, model.proposals, model.anchor_scale)
        cascade = Cascade(
            lambda: _build_head(config, len(categories.ids) + 1),
            width=width,
            mask_classes=len(categories.ids) if model.masks == "class" else 1,
            group_norm=group_norm,
            rois=model.rois,
            canonical=56 * model.anchor_scale,  # 224 with torchvision's anchors
            loss=config.row.loss,
            rare=find_rare_classes(categories.images, config.head.eql_share * images),
            focal_gamma=config.head.focal_gamma,
        )
    # padding enters the statistics of group normalisation, so it must always be the same
    min_canvas = canvas if group_norm else NO_CANVAS
    inputs = describe_inputs(config.backbone) if config.start else None
    detector = Detector(pyramid, proposals, cascade, min_canvas, inputs).set_scoring(config)
    return detector.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def _build_head(config: DetectionConfig, outputs: int) -> Head:
    """Build the box classifier of a stage."""
    options, dim, kind = config.head, config.model.features, config.row.head
    if config.row.loss in PRIORS:
        return SigmoidHead(dim, outputs, PRIORS[config.row.loss])
    if kind == "linear":
        return LinearHead(dim, outputs)
    # the cascade has the alpha of scoring
    shared = {"tau": options.tau, "alpha": 0.0, "momentum": options.mean_momentum}
    if kind == "deconfound":
        return DeconfoundHead(dim, outputs, options.heads or 2, gamma=options.gamma, **shared)
    normalised = CosineHead if kind == "cosine" else CapsuleHead
    return normalised(dim, outputs, options.heads or 1, **shared)
