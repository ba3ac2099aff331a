"""Use of trained models: predict, evaluate, export, embed, retrofit, adapt, extend, verify."""
