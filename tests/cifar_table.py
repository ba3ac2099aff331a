"""The rows and columns of tab:rebuttal_1, the table of the CIFAR sets."""

SETS = [f"cifar{classes}-lt:{ratio}" for classes in (10, 100) for ratio in (100, 50, 10)]
FOLDERS = [data.replace(":", "-") for data in SETS]
"""The sets as folders of recipes and results are called."""
RIVALS = ("focal", "mixup", "class-balanced", "ldam-drw", "bbn")
"""Methods of the table beside the paper's own."""
PAIR = ("deconfound", "deconfound-tde")
"""The paper's own."""
