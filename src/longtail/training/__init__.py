"""The one training loop, and what it needs: model, optimiser, batches, schedule, launch."""
