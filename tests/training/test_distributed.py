"""Two gloo processes equal one process on the joined batch, through the whole training."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import longtail as lt
from helpers import float64, on_two_ranks, stepping_config, tiny_data
from interrupted import Kill
from longtail.cli import parser as cli
from longtail.cli.output import print_lines, rank
from longtail.core.config import MachineConfig
from longtail.core.errors import UserError
from longtail.data.decoding import host
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run
from longtail.training import launch
from longtail.training.trainer import Trainer

NAMES = [
    "deconfound-tde",
    "class-balanced",
    "decouple-crt",
    "decouple-lws",
    "decouple-oltr",
    "oltr",
]


def trained(out: Path) -> None:
    """Runs of all methods on embeddings, 15 steps in float64."""
    with float64():
        data = tiny_data(images=False, counts=(24, 12, 5))
        fit_all(stepping_config(backbone="identity", heads=2), NAMES, [0], out=out, data=data)


def trained_with_batch_statistics(out: Path) -> None:
    """They are of each rank, so two ranks cannot equal one."""
    fit_all(stepping_config(epochs=1), ["bbn"], [0], out=out, data=tiny_data())


def trained_on_two_ranks(out: Path) -> None:
    trained(out)
    trained_with_batch_statistics(out / "bbn" / "s0")


def test_two_ranks_equal_one(tmp_path):
    trained(tmp_path / "one")
    on_two_ranks(trained_on_two_ranks, tmp_path / "two", store=tmp_path / "store")
    for name in NAMES:
        one, two = (Run(tmp_path / ranks / name / "s0") for ranks in ("one", "two"))
        weights = one.load_model(), two.load_model()
        assert weights[0]["head.weight"].dtype == torch.float64
        for key in weights[0]:  # equal weights after 15 steps: equal logits and gradients in each
            torch.testing.assert_close(weights[0][key], weights[1][key], rtol=1e-9, atol=1e-12)
        for first, second in zip(one.metrics, two.metrics, strict=True):
            assert first["loss"] == pytest.approx(second["loss"], rel=1e-9)
        # 15 test images on 2 ranks: a padded 16th would change the figures
        for field in ("overall", "medium", "few", "per_class", "sweep"):
            assert one.result[field] == two.result[field], (name, field)
        if name == "deconfound-tde":
            assert weights[0]["head.mean_feature"].abs().max() > 0
            assert one.result["mean_cos"] == pytest.approx(two.result["mean_cos"])
        if name == "oltr":
            assert weights[0]["head.memory"].abs().max() > 0
    # all ranks evaluated one model: the saved one, with rank 0's batch statistics
    bbn = Run(tmp_path / "two" / "bbn" / "s0")
    again = lt.evaluate(bbn, data=tiny_data())
    assert again.details.feature_norm == pytest.approx(bbn.result["feature_norm"], rel=1e-4)


def train_to_the_end_and_until_a_kill(words: list[str], out: Path) -> None:
    """Run the command twice; the second time every rank dies when its third epoch begins."""
    begin = Trainer.begin_epoch

    def die(trainer: Trainer, epoch: int) -> None:
        if epoch == 2:
            raise Kill
        begin(trainer, epoch)

    with float64():
        cli.main([*words, "--out", str(out / "whole")])
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Kill):
            patch.setattr(Trainer, "begin_epoch", die)
            cli.main([*words, "--out", str(out / "killed")])


def photographs(folder: Path) -> Path:
    """26 images of three classes, six of them for the test."""
    random = np.random.RandomState(0)
    for i in range(26):
        label = (0, 0, 0, 1, 1, 2)[i % 6]
        place = folder / ("test" if i >= 20 else "train") / "abc"[label]
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.randint(0, 128, (36, 40, 3)) + 40 * label
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return folder


def test_the_command_on_two_ranks_equals_one_and_one_rank_goes_on_after_two(tmp_path):
    """Group norm, photographs' augmentation, gradients in parts, images streamed; in float64.

    Without workers: a fork beside the threads of gloo may hang, in torch's own loader as in ours.
    """
    images = photographs(tmp_path / "photos")
    words = [
        *("train", str(images), "--method", "deconfound-tde", "--backbone", "test_efficientnet_gn"),
        *("--image-size", "36", "--crop-size", "32", "--augment", "resized-crop"),
        *("--epochs", "3", "--batch-size", "8", "--lr", "0.02", "--warmup", "0"),
        *("--save-seconds", "0", "--device", "cpu", "--alpha", "1"),
    ]
    streaming = [*words, "--stream", "--workers", "0", "--accumulate", "2"]
    work = train_to_the_end_and_until_a_kill
    on_two_ranks(work, streaming, tmp_path / "two", store=tmp_path / "store")
    killed = Run(tmp_path / "two" / "killed")
    assert not killed.finished and killed.load_checkpoint()["epoch"] == 2

    one, two = Run(tmp_path / "one"), Run(tmp_path / "two" / "whole")
    with float64():
        cli.main([*words, "--out", str(one.folder)])
        cli.main([*streaming, "--out", str(killed.folder), "--resume"])
    expected = one.load_model()
    for run in (two, killed):
        weights = run.load_model()
        for key in expected:
            torch.testing.assert_close(weights[key], expected[key], rtol=1e-9, atol=1e-12)
        losses = [[record["loss"] for record in r.metrics] for r in (one, run)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-9) and len(losses[0]) == 3
        assert run.result["per_class"] == one.result["per_class"]


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, (1, 1)),
        ({"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"}, (4, 2)),
        ({"SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "3"}, (2, 3)),
        ({"SLURM_STEP_NUM_TASKS": "1"}, (1, 1)),
        ({"SLURM_NTASKS": "8", "SLURM_NNODES": "2"}, (1, 1)),  # a script of sbatch, without srun
    ],
)
def test_processes_are_counted_for_you(env, wanted, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    machine = MachineConfig()
    assert (host.count_processes(machine), host.count_hosts(machine)) == wanted


def test_a_script_of_sbatch_is_one_process(monkeypatch):
    """It has --ntasks as srun's processes have, but nobody has started the other seven."""
    for name, value in {
        "NTASKS": "8",
        "NTASKS_PER_NODE": "4",
        "NNODES": "2",
        "PROCID": "0",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert launch.launch(MachineConfig(device="cpu")).world_size == 1
    monkeypatch.setenv("LOCAL_RANK", "1")  # as --devices 2 gives it to the second process
    assert rank() == 1
    monkeypatch.delenv("LOCAL_RANK")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert rank() == 5


def test_only_rank_0_prints(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    print_lines(["a"], [["b"]])
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    print_lines(["a"], [["b"]])
    assert capsys.readouterr().out == "a\nb\n"


def test_synchronised_statistics_need_cuda():
    with pytest.raises(UserError, match="--sync-batchnorm needs CUDA devices"):
        launch.launch(MachineConfig(device="cpu", sync_batchnorm=True))
