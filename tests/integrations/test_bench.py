"""The benchmark trains one recipe in every trainer, once."""

import json

import pytest

from benchmarks.command import main as bench_command
from benchmarks.integrations import command as integrations
from longtail.core.errors import UserError

pytestmark = pytest.mark.filterwarnings("ignore")  # the libraries warn of their surroundings
RECIPE = """
data: digits-lt:20
method: deconfound-tde
backbone: test_resnet
files: {val_fraction: 0.2}
train: {epochs: 1, batch_size: 64, optimizer: adamw, lr: 0.001, head_lr: 0.01, weight_decay: 0.02,
  decay_norms: false, schedule: one-cycle, drop: 0.1, augment: crop, flip: false, cutmix: 0.5}
options: {alpha: auto}
"""


def test_every_trainer_appends_a_line_and_a_second_call_none(tmp_path, capsys):
    pytest.importorskip("transformers")
    path = tmp_path / "recipes" / integrations.RECIPE
    path.parent.mkdir(parents=True)
    path.write_text(RECIPE)
    folders = [
        word
        for name in ("recipes", "results", "runs")
        for word in (f"--{name}", str(tmp_path / name))
    ]
    command = ["integrations", "--device", "cpu", "--seeds", "1", *folders]
    bench_command([*command, "--shard", "0/2"])
    bench_command([*command, "--shard", "1/2"])
    file = tmp_path / "results/integrations/integrations.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert {line["trainer"] for line in lines} == set(integrations.NAMES)
    assert len({line["subset_sha256"] for line in lines}) == 1
    for line in lines:
        assert {"overall", "many", "medium", "few", "class_mean"} <= set(line)
        assert 0 <= line["as_trained"]["class_mean"] <= 100 and 0 <= line["alpha"] <= 3
    by_name = {line["trainer"]: line for line in lines}
    # the same draws, so that two plain loops agree
    assert by_name["timm"]["class_mean"] == pytest.approx(by_name["lightning"]["class_mean"])
    page = (tmp_path / "results/integrations.md").read_text()
    assert all(f"| {name}" in page for name in integrations.NAMES)
    capsys.readouterr()
    bench_command([*command, "--dry-run"])
    assert capsys.readouterr().out.startswith("nothing to do: ")


def test_an_unknown_trainer_is_refused():
    message = "--only keras: no name contains it. The names are:\nlongtail; lightning; "
    with pytest.raises(UserError, match=message):
        integrations.select_units(1, ["keras"], "0/1", [])
