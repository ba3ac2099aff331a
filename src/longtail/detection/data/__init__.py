"""Annotated images: annotation files, masks, batches and generated shapes."""
