"""The table of commands.

Each command is a dataclass of its options whose `run` calls one library function and prints. No
command imports torch before it runs, so that help answers at once.
"""

from longtail.cli.demo import Demo
from longtail.cli.detect import DetectEval, DetectReport, DetectSweep, DetectTrain
from longtail.cli.detect_predict import DetectPredict
from longtail.cli.embed import Embed
from longtail.cli.evaluate import Eval
from longtail.cli.export import Export
from longtail.cli.figure import Figure, Figures
from longtail.cli.lists import DataSets, Methods
from longtail.cli.predict import Predict
from longtail.cli.report import Report
from longtail.cli.retrofit import RetrofitCommand
from longtail.cli.sweep import Sweep
from longtail.cli.train import Train

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
    "retrofit": RetrofitCommand,
    "methods": Methods,
    "data": DataSets,
    "detect train": DetectTrain,
    "detect eval": DetectEval,
    "detect sweep": DetectSweep,
    "detect predict": DetectPredict,
    "detect report": DetectReport,
}
"""Commands by what the user types: one word, or a family and a word of it."""
