"""ultralytics: a trainer of its classifiers with the de-confounded head and a loss for the tail."""

from typing import Any, ClassVar

from torch import Tensor
from ultralytics.models.yolo.classify import ClassificationTrainer
from ultralytics.utils.loss import v8ClassificationLoss

from longtail.integrations.parts import find_head, follow_momentum, swap_last_layer
from longtail.nn.heads import NormalisedHead
from longtail.nn.tail import Tail, TailLoss


class TailTrainer(ClassificationTrainer):
    """Trains a classifier of ultralytics: `YOLO("yolo11n-cls.yaml").train(trainer=TailTrainer)`.

    It counts the training images of each class, replaces the last linear layer by a
    `DeconfoundHead`, and lets the mean feature decay by the optimiser's momentum. A subclass may
    set `tail_loss`, `tail_loss_options` and `head_options`.
    """

    tail_loss: ClassVar[str] = "balanced-softmax"
    """A name of `Tail.loss`."""
    tail_loss_options: ClassVar[dict[str, float]] = {}
    head_options: ClassVar[dict[str, float]] = {}
    """Options of `DeconfoundHead`."""

    def setup_model(self) -> Any:
        checkpoint = super().setup_model()
        classes = self.data["nc"]
        labels = [sample[1] for sample in self.build_dataset(self.data["train"]).samples]
        self.tail = Tail.of(labels, classes)
        if not any(isinstance(module, NormalisedHead) for module in self.model.modules()):
            swap_last_layer(self.model, classes, **self.head_options)
        self.model.criterion = Criterion(self.tail.loss(self.tail_loss, **self.tail_loss_options))
        self.add_callback("on_train_batch_start", _follow)
        return checkpoint


class Criterion(v8ClassificationLoss):
    """A loss with the signature of ultralytics: (predictions, batch) -> loss and its parts."""

    def __init__(self, loss: TailLoss) -> None:
        self.loss = loss

    def __call__(self, predictions: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Any]:
        logits = predictions[1] if isinstance(predictions, (list, tuple)) else predictions
        value = self.loss.to(logits.device)(logits, batch["cls"])
        _, parts = super().__call__(predictions, batch)  # a tensor in older versions
        return value, {"loss": value.detach()} if isinstance(parts, dict) else value.detach()


def _follow(trainer: TailTrainer) -> None:
    follow_momentum(find_head(trainer.model), trainer.optimizer)
