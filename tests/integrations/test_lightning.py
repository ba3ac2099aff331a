"""Lightning: the script of the page, and what the callback promises."""

import pickle

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import longtail as lt
from helpers import on_two_ranks
from longtail.integrations import lightning as bridge
from longtail.integrations.lightning import TailCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns of its surroundings
LABELS = torch.arange(3).repeat_interleave(torch.tensor([40, 12, 4]))
TAIL = lt.Tail.of(LABELS)


class Module(pl.LightningModule):
    def __init__(self, momentum=0.7, optimizer="sgd"):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.momentum, self.optimizer, self.seen = momentum, optimizer, []

    def training_step(self, batch, index):
        self.seen.append(self.network[-1].momentum.item())
        return nn.functional.cross_entropy(self.network(batch["x"]), batch["y"])

    def validation_step(self, batch, index):
        return self.network(batch["x"])

    test_step = validation_step

    def configure_optimizers(self):
        if self.optimizer == "adam":
            return torch.optim.AdamW(self.parameters(), betas=(self.momentum, 0.99))
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=self.momentum)


def with_head(module):
    module.network[-1] = TAIL.head(8)
    return module


class Rows(TensorDataset):
    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return {"x": x, "y": y}


def loader(labels=LABELS, **options):
    x = torch.eye(3, 6)[labels] + 0.3 * torch.rand(len(labels), 6)
    return DataLoader(Rows(x, labels), 8, **options)


def make_trainer(folder, **options):
    callback = TailCallback(TAIL, labels=lambda batch: batch["y"], alpha=2.0)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return pl.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[callback], default_root_dir=folder,
        **quiet, **options,
    )  # fmt: skip


def test_the_script_of_the_page_runs(run_page, capsys):
    names = run_page("lightning")
    assert isinstance(names["model"].network[-1], lt.DeconfoundHead)
    assert {"test_overall", "test_many", "test_medium", "test_few"} <= set(names["figures"])
    assert "test_few" in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_callback_swaps_follows_evaluates_and_chooses(tmp_path, optimizer):
    torch.manual_seed(0)
    trainer, module = make_trainer(tmp_path), Module(optimizer=optimizer)
    val = loader(torch.arange(3).repeat(4))
    trainer.fit(module, loader(sampler=TAIL.sampler("class")), val)
    head = module.network[-1]
    assert isinstance(head, lt.DeconfoundHead) and head.mean_feature.any()
    assert module.seen == pytest.approx([0.7] * len(module.seen))
    assert {"val_overall", "val_medium", "val_few", "val_class_mean"} <= set(
        trainer.callback_metrics
    )
    features = module.network[:-1].eval()(val.dataset.tensors[0])
    chosen = lt.choose_alpha(head, features, val.dataset.tensors[1])
    assert float(head.alpha) == chosen
    # a checkpoint has the head and the alpha of its weights; testing changes neither
    saved = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert saved["state_dict"]["network.2.alpha"].item() == chosen
    other, fresh = make_trainer(tmp_path), Module()
    path = trainer.checkpoint_callback.best_model_path
    (figures,) = other.test(fresh, val, ckpt_path=path, verbose=False)
    assert float(fresh.network[-1].alpha) == chosen
    logits = module.network.eval()(val.dataset.tensors[0])
    right = (logits.argmax(1) == val.dataset.tensors[1]).float().mean().item()
    assert figures["test_overall"] == pytest.approx(100 * right)


@pytest.mark.parametrize("verb", ["validate", "test", "predict"])
def test_a_module_that_was_trained_without_the_callback_is_left_alone(tmp_path, verb):
    module = Module()
    module.predict_step = module.validation_step
    own = module.network[-1]
    with pytest.raises(lt.UserError, match="Module has no normalised head yet: train"):
        getattr(make_trainer(tmp_path), verb)(module, loader())
    assert module.network[-1] is own


def test_an_interrupted_validation_leaves_nothing_behind(tmp_path):
    class Interrupted(Module):
        stopped = False

        def validation_step(self, batch, index):
            logits = super().validation_step(batch, index)
            if not self.stopped:
                self.stopped = True
                raise RuntimeError("stop")
            return logits

    trainer, module = make_trainer(tmp_path, num_sanity_val_steps=0), with_head(Interrupted())
    with pytest.raises(RuntimeError, match="stop"):
        trainer.validate(module, loader(), verbose=False)
    trainer.validate(module, loader(), verbose=False)
    assert not module.network[-1]._forward_hooks


def test_mistakes_are_named(tmp_path):
    class Twice(Module):
        def validation_step(self, batch, index):
            return self.network(batch["x"]) + self.network(-batch["x"])

    with pytest.raises(lt.UserError, match="112 features passed the head for 56 val labels: every"):
        make_trainer(tmp_path).validate(with_head(Twice()), loader(), verbose=False)
    with pytest.raises(lt.UserError, match=r"a batch is a dict, not \(images, labels\): pass"):
        bridge.read_labels({"x": 1, "y": 2})


def test_a_head_that_is_there_stays(tmp_path):
    module = with_head(Module())
    own = module.network[-1]
    make_trainer(tmp_path, limit_train_batches=1, limit_val_batches=1).fit(
        module, loader(), loader()
    )
    assert module.network[-1] is own


def test_processes_that_are_spawned_get_the_callback():
    other = pickle.loads(pickle.dumps(TailCallback(TAIL, tau=4.0)))
    assert other.tail.counts == TAIL.counts and other.head_options == {"tau": 4.0}
    assert other.labels(("images", "labels")) == "labels"


def gather_on_ranks():
    rank = torch.distributed.get_rank()
    rows = torch.arange(3 - rank)[:, None] + 10 * rank
    return bridge.gather_rows(rows)


def test_ranks_with_unequal_rows_are_joined(tmp_path):
    found = on_two_ranks(gather_on_ranks, store=tmp_path / "store")
    assert found.flatten().tolist() == [0, 1, 2, 10, 11]
