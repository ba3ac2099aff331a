"""Trained models outside training: predict, export, embed, retrofit."""
