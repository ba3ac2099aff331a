"""A head that a user writes is saved and opened like ours, or refused before any training."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail import methods
from longtail.core.errors import UserError
from longtail.methods.base import Method
from longtail.nn.heads import Head, NormalisedHead
from longtail.runs.fit import fit_all
from longtail.training.head_kinds import find_head
from test_docs import ROOT, blocks


class NamedHead(Head):
    """Its parameter has another name; `class_weight` says which."""

    def __init__(self, dim: int, classes: int, scale: float = 3.0) -> None:
        super().__init__(dim, classes)
        del self.weight
        self.scale, self.kernel = scale, nn.Parameter(torch.randn(classes, dim))

    @property
    def class_weight(self) -> torch.Tensor:
        return self.kernel

    def forward(self, x):
        return self.scale * F.linear(x, self.kernel)


class DoubledHead(lt.LinearHead):
    def forward(self, x):
        return 2 * super().forward(x)


class QuadrupledHead(DoubledHead):
    """So that `DoubledHead` is not a leaf."""


class SquashedHead(NormalisedHead):
    """A normalised head that takes no alpha."""

    squash, gamma = 0.5, 0.0

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)


WRITTEN: dict = {}
exec(blocks(ROOT / "docs/add-a-method.md"), WRITTEN)
tempered_head = WRITTEN["tempered"](temperature=4.0).head


def fit(monkeypatch, tmp_path, head):
    def toy() -> Method:
        """A toy."""
        return Method(head=head)

    monkeypatch.setitem(methods.registry(), "toy", toy)
    config = tiny_config(method="toy", epochs=1, backbone="identity", augment="none")
    data = tiny_data(images=False)
    (run,) = fit_all(config, ["toy"], [0], out=tmp_path / "toy", data=data)
    return run, data


@pytest.mark.parametrize(
    "make", [NamedHead, DoubledHead, QuadrupledHead, SquashedHead, tempered_head]
)
def test_a_head_of_ones_own_is_saved_and_opened(make, monkeypatch, tmp_path):
    run, data = fit(monkeypatch, tmp_path, make)
    head, state = make(6, 3).eval(), run.load_model()
    head.load_state_dict({n.removeprefix("head."): v for n, v in state.items() if "head." in n})
    norms = head.class_weight.norm(dim=1).tolist()
    assert run.result["weight_norm"] == pytest.approx(norms, rel=1e-3)
    saved = lt.load_model(run).save_pretrained(tmp_path / "saved")
    exported = lt.export(run, out=tmp_path / "model.safetensors")
    for place in (run, saved, exported):
        opened = lt.load_model(place, device="cpu")
        torch.testing.assert_close(
            opened.require_model("a test").head(data.test.inputs), head(data.test.inputs)
        )


class PlainModule(nn.Linear):
    pass


class ForgetfulHead(lt.LinearHead):
    def __init__(self, dim: int, classes: int, scale: float = 3.0) -> None:
        super().__init__(dim, classes)


class WordyHead(lt.LinearHead):
    def __init__(self, dim: int, classes: int, mode: str = "plain") -> None:
        super().__init__(dim, classes)
        self.mode = mode


class WeightlessHead(NamedHead):
    @property
    def class_weight(self) -> torch.Tensor:
        return self.weight


class GrowingHead(lt.LinearHead):
    """One of its tensors does not follow from its numbers."""

    made = 0

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__(dim, classes)
        type(self).made += 1
        self.register_buffer("steps", torch.zeros(self.made))


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (PlainModule, "head PlainModule is not a subclass of longtail.nn.heads.Head"),
        (ForgetfulHead, "takes 'scale' and keeps no finite number in an attribute of that name"),
        (WordyHead, "takes 'mode' and keeps no finite number"),
        (lambda dim, classes: NamedHead(dim, classes, float("inf")), "takes 'scale' and keeps no"),
        (WeightlessHead, "class_weight of its head WeightlessHead is missing"),
        (lambda dim, classes: NamedHead(dim, classes + 1), r"is of shape \(4, 6\)"),
        (GrowingHead, r"again as GrowingHead\(dim=6, classes=3\): the tensors of the two differ"),
    ],
)
def test_a_head_that_could_not_be_opened_is_refused_before_training(
    head, said, monkeypatch, tmp_path
):
    with pytest.raises(UserError, match=said):
        fit(monkeypatch, tmp_path, head)
    assert not (tmp_path / "toy").exists()


def test_two_heads_of_one_name_are_refused(monkeypatch, tmp_path):
    first, second = (type("TwinHead", (DoubledHead,), {"__module__": m}) for m in ("one", "two"))
    said = "more than one head is called 'TwinHead': one.TwinHead and two.TwinHead"
    with pytest.raises(UserError, match=said):
        find_head("TwinHead")
    for head in (first, second):
        with pytest.raises(UserError, match=said):
            fit(monkeypatch, tmp_path, head)


def test_a_class_that_is_defined_again_replaces_the_former():
    first, second = (type("AgainHead", (Head,), {"__module__": "notebook"}) for _ in range(2))
    assert find_head("AgainHead") is second is not first


def test_the_bases_of_our_heads_are_no_kind_of_head():
    for name in ("Head", "NormalisedHead", "TrainedBiasHead"):
        with pytest.raises(UserError, match="unknown kind of head"):
            find_head(name)
