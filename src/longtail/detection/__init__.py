"""Detection and instance segmentation with a long tail: Cascade Mask R-CNN on LVIS."""
