"""The commands: each is a dataclass of its options, calls one library function, and prints.

Nothing here imports torch before it is needed, so that help answers at once.
"""

from longtail.commands.benching import Bench
from longtail.commands.detecting import DetectEval, DetectReport, DetectSweep, DetectTrain
from longtail.commands.drawing import Figure, Figures
from longtail.commands.judging import Eval, Report, Sweep
from longtail.commands.listing import DataSets, Methods
from longtail.commands.looking import DetectPredict
from longtail.commands.reusing import Embed, Retrofit
from longtail.commands.shipping import Export, Predict
from longtail.commands.training import Demo, Train

COMMANDS: dict[str, type] = {
    "demo": Demo,
    "train": Train,
    "eval": Eval,
    "sweep": Sweep,
    "report": Report,
    "predict": Predict,
    "export": Export,
    "figure": Figure,
    "figures": Figures,
    "embed": Embed,
    "retrofit": Retrofit,
    "bench": Bench,
    "methods": Methods,
    "data": DataSets,
    "detect train": DetectTrain,
    "detect eval": DetectEval,
    "detect sweep": DetectSweep,
    "detect predict": DetectPredict,
    "detect report": DetectReport,
}
"""By what the user types: one word, or a family and a word of it."""
