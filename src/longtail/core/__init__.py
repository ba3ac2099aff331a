"""Options, errors, seeds, files, locks and progress: what every other room stands on."""
