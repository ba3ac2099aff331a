"""Long-tailed recognition: replace the last layer, train as usual, and recover the rare classes.

Names load on first use, so that importing the package is fast.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "CapsuleHead": "nn.heads",
    "CosineHead": "nn.heads",
    "DeconfoundHead": "nn.heads",
    "LinearHead": "nn.heads",
    "Tail": "nn.tail",
    "background_exempt": "nn.background",
    "ClassCounts": "data.base",
    "Data": "data.base",
    "Split": "data.base",
    "load": "data.load",
    "choose_alpha": "evaluation.alpha",
    "Result": "evaluation.result",
    "Run": "runs.folder",
    "UserError": "core.errors",
    "CosineTDEClassifier": "estimators.tde",
    "DeconfoundTDEClassifier": "estimators.tde",
    "LinearSoftmaxClassifier": "estimators.tde",
    "MultiLabelTDEClassifier": "estimators.several",
    "embed": "serving.embeddings",
    "evaluate": "serving.evaluate",
    "fit": "runs.fit",
    "sweep": "runs.reopen",
    "audit": "reporting.audit",
    "report": "reporting.page",
    "Prediction": "serving.answers",
    "Predictor": "serving.predictor",
    "adapt": "serving.adapt",
    "export": "serving.write",
    "extend": "serving.extend",
    "load_model": "serving.predictor",
    "retrofit": "serving.retrofit",
}

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name == "integrations":
        return import_module("longtail.integrations")
    if name not in _MODULES:
        raise AttributeError(f"module 'longtail' has no attribute '{name}'")
    return getattr(import_module(f"longtail.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
