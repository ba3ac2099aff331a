"""The training loop and its parts: launch, model, batches, schedule, optimiser, step."""
