"""Run folders: plan trainings, fit them, reopen and compare finished runs."""
