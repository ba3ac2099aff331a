"""Use of trained models: predict, export, embed, retrofit."""
