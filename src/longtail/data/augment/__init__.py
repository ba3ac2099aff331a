"""Augmentation of whole batches on their device, one random draw per image."""
