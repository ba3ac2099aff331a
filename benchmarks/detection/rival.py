"""Mask R-CNN of torchvision with our backbone, heads and sizes, to compare speeds with."""

from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor

from longtail.detection.config import DetectionConfig
from longtail.detection.data.batches import DetectionBatch
from longtail.detection.network.proposals import SIZES
from longtail.detection.network.pyramid import Pyramid, build_group_norm
from longtail.detection.network.regions import BOX


def build_mask_rcnn(config: DetectionConfig, classes: int) -> MaskRCNN:
    """Build torchvision's Mask R-CNN with our backbone, heads, sizes and numbers of regions.

    It predicts a box and a mask for each class; torchvision has no shared ones. Its detections stay
    on the canvas, as ours do here: pasting masks is not part of the network.
    """
    model, inference = config.model, config.inference
    pyramid = Pyramid(config.backbone, norm=model.norm, width=model.width)
    pyramid.out_channels = model.width  # type: ignore[assignment]
    norm = build_group_norm if model.norm == "group" else None
    sizes = tuple((int(size * model.anchor_scale),) for size in SIZES)
    detector = MaskRCNN(
        pyramid,
        box_head=TwoMLPHead(model.width * BOX * BOX, model.features),
        box_predictor=FastRCNNPredictor(model.features, classes + 1),
        mask_head=MaskRCNNHeads(model.width, (model.width,) * 4, 1, norm_layer=norm),
        mask_predictor=MaskRCNNPredictor(model.width, model.width, classes + 1),
        min_size=model.image_size,
        max_size=model.max_size,
        rpn_anchor_generator=AnchorGenerator(sizes, ((0.5, 1.0, 2.0),) * len(sizes)),
        rpn_pre_nms_top_n_train=2 * model.proposals,
        rpn_pre_nms_top_n_test=2 * model.proposals,
        rpn_post_nms_top_n_train=model.proposals,
        rpn_post_nms_top_n_test=model.proposals,
        box_batch_size_per_image=model.rois,
        box_detections_per_img=inference.detections,
        box_score_thresh=inference.score_threshold,
    )
    detector.transform.postprocess = lambda found, *_: found
    return detector


def split_batch(batch: DetectionBatch) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Convert a batch to the lists of images and targets that torchvision takes."""
    masks = batch.masks.view(*batch.labels.shape, *batch.masks.shape[1:])
    parts = zip(batch.boxes, batch.labels, masks, strict=True)
    targets = [{"boxes": b, "labels": n, "masks": m} for b, n, m in parts]
    return list((batch.images / 255).unbind(0)), targets
