"""The detector: pyramid, proposals, cascade of region heads."""
