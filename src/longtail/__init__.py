"""Long-tailed recognition: swap the last layer, train as always, and the rare classes come back.

Names load on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "CapsuleHead": "heads",
    "CosineHead": "heads",
    "DeconfoundHead": "heads",
    "LinearHead": "heads",
    "background_exempt": "heads",
    "ClassCounts": "data.base",
    "Data": "data.base",
    "Split": "data.base",
    "load": "data",
    "Result": "results",
    "Run": "runs",
    "UserError": "errors",
    "CosineTDEClassifier": "estimator",
    "DeconfoundTDEClassifier": "estimator",
    "LinearSoftmaxClassifier": "estimator",
    "embed": "embeddings",
    "evaluate": "finished",
    "fit": "pipeline",
    "sweep": "finished",
    "report": "reports",
    "Prediction": "predictor",
    "Predictor": "predictor",
    "export": "exports",
    "load_model": "predictor",
    "retrofit": "retrofits",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'longtail' has no attribute '{name}'")
    return getattr(import_module(f"longtail.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
