"""The trust benchmark: class mixes, calibration, answer sets, unknown images and new classes."""
