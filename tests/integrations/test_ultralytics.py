"""ultralytics: the script of the page, and the loss of its trainer."""

import pytest
import torch

import longtail as lt


@pytest.fixture(autouse=True)
def own_settings(tmp_path_factory, monkeypatch):
    """ultralytics keeps its settings here, and asks no server."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.setenv("YOLO_OFFLINE", "true")


@pytest.mark.filterwarnings("ignore")  # ultralytics warns of its surroundings
def test_the_script_of_the_page_runs(run_page, capsys):
    pytest.importorskip("ultralytics")
    names = run_page("ultralytics")
    trainer = names["model"].trainer
    assert trainer.tail.counts.images == (110, 24, 6)
    assert isinstance(names["head"], lt.DeconfoundHead) and names["head"].mean_feature.any()
    assert names["head"].momentum.item() == pytest.approx(
        trainer.optimizer.param_groups[0].get("momentum", trainer.args.momentum), abs=0.2
    )
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 2])
    found, parts = names["network"].criterion((None, logits), {"cls": labels})
    parts = parts["loss"] if isinstance(parts, dict) else parts  # a tensor in older versions
    assert found == parts == trainer.tail.loss("balanced-softmax")(logits, labels)
    assert "few" in capsys.readouterr().out
    from ultralytics import YOLO

    reopened = YOLO(trainer.best).model.float().eval()
    assert torch.equal(reopened.model[-1].linear.mean_feature.isfinite(), torch.ones(1280) > 0)
