"""The detector network: feature pyramid, proposals and a cascade of region heads."""
