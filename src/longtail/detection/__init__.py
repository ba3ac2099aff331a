"""Long-tailed detection and instance segmentation: Cascade Mask R-CNN on LVIS."""
