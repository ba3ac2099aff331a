"""Model files from strangers: they choose no path, add no code to a page, and break nothing."""

import json

import numpy as np
import pytest
import torch

from helpers import tiny_config, tiny_data
from longtail.core.errors import UserError
from longtail.core.files import read_tensors, write_tensors
from longtail.data.base import ClassCounts
from longtail.evaluation.trust import describe_trust
from longtail.nn.checkpoints import read_state
from longtail.nn.heads import DeconfoundHead
from longtail.reporting.page import report
from longtail.runs.fit import fit_all
from longtail.serving.card import escape_text, quote_code, quote_python
from longtail.serving.predictor import load_model
from longtail.serving.write import export

PIXELS = np.zeros((16, 16, 3), np.uint8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run and a saved model without hashes, which a stranger would leave out."""
    folder = tmp_path_factory.mktemp("hostile")
    config = tiny_config(epochs=1)
    (run,) = fit_all(config, ["deconfound-tde"], [0], out=folder / "run", data=tiny_data())
    load_model(run.folder).save_pretrained(folder / "saved", alpha_input=True)
    weights = folder / "saved" / "model.safetensors"
    write_tensors(weights, read_tensors(weights))
    (run.folder / "manifest.json").unlink()
    return folder


def change(trained, tmp_path, **fields):
    """Copy the saved model with other fields in its description."""
    (tmp_path / "saved").mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "saved" / name).write_bytes((trained / "saved" / name).read_bytes())
    path = tmp_path / "saved" / "config.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    for name, value in fields.items():
        tree[name] = {**(tree[name] or {}), **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(tree), encoding="utf-8")
    return tmp_path / "saved"


def test_export_writes_into_the_current_folder_only(trained, tmp_path, monkeypatch):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    path = export(change(trained, tmp_path, training={"method": "../../x/y"}))
    assert path.name == str(path) == "x-y.safetensors"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "saved"]


def test_a_card_shows_names_as_texts(trained, tmp_path):
    strange = ["a`b", "<img src=x onerror=alert(1)>", "``x``\n# big"]
    training = {"method": "<script>x</script>", "data": "[a](http://b)", "verdict": "*bold*"}
    folder = change(trained, tmp_path, classes=strange, training=training)
    path = export(folder, out=tmp_path / "m`.safetensors")
    card = path.with_name(f"{path.name}.md").read_text(encoding="utf-8")
    assert "<script" not in card and "[a](" not in card and "\n# big" not in card
    assert "``a`b``" in card and "`<img src=x onerror=alert(1)>`" in card
    assert '"m\\x60.safetensors"' in card and "\\*bold\\*" in card


def test_a_card_does_without_figures_that_are_gone(trained, tmp_path):
    metrics = {"alpha": 2.0, "evaluated_on": "?", "answers": {"many": 1.0}, "sweep": {}}
    folder = change(trained, tmp_path, metrics=metrics, training={"added_classes": 3})
    export(folder, out=tmp_path / "m.safetensors")
    card = (tmp_path / "m.safetensors.md").read_text(encoding="utf-8")
    assert "on the unknown part" in card and "Added" not in card


def test_quotes_of_markdown():
    assert quote_code("plain") == "`plain`" and quote_code("`") == "`` ` ``"
    assert quote_code("\x1b") == "`\\x1b`" and quote_code("") == "`  `"
    assert escape_text("a <b> *c*") == "a &lt;b&gt; \\*c\\*"
    assert quote_python('a"`') == '"a\\"\\x60"'


@pytest.mark.parametrize(
    "fields",
    [
        {"alpha": "nan"},
        {"alpha": float("inf")},
        {"blueprint": {"head": {"kind": "NoHead"}}},
        {"blueprint": {"backbone": "/dev/null"}},
        {"blueprint": {"seen": [2**31, 2**31]}},
        {"blueprint": {"shape": []}},
        {
            "blueprint": {
                "head": {"kind": "DeconfoundHead", "dim": 64, "classes": 3, "gamma": 10**26}
            }
        },
        {"blueprint": {"head": {"kind": "DeconfoundHead", "dim": 64, "classes": 3, "tau": 1e308}}},
        {"classes": None},
        {"metrics": {"overall": "high"}},
        {"metrics": {"sweep": []}},
        {"metrics": {"answers": 3}},
        {"metrics": []},
        {"blueprint": {"head": {"kind": "LinearHead", "dim": 64, "classes": 3}}},
    ],
)
def test_a_changed_description_is_refused_by_name(trained, tmp_path, fields):
    with pytest.raises(UserError, match="saved"):
        load_model(change(trained, tmp_path, **fields))


@pytest.fixture(scope="module")
def trust() -> dict:
    """The certainty of a model of three classes."""
    x, labels = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    logits, counts = 3 * torch.eye(3)[labels], ClassCounts((9, 5, 2))
    return describe_trust(logits, x, labels, counts, class_means=torch.eye(3, 4))


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("", []),
        ("", "x"),
        ("images", None),
        ("images", float("inf")),
        ("images", "30"),
        ("sets", []),
        ("sets", {"0.9": [0.5, 0.5]}),
        ("sets", {"0.9": [0.5, 0.5, float("nan")]}),
        ("calibration", {"scale": 10**400, "bias": [0, 0, 0], "prior": [1, 1, 1]}),
        ("calibration", {"scale": 1.0, "bias": [0, 0, 0], "prior": [1, -1, 1]}),
        ("novelty", {"energy": [0.0], "distance": None, "thresholds": {}}),
        ("novelty", {"energy": [0.0, 1.0], "distance": None, "thresholds": {}}),
        ("mix", {"confusion": [[1.0]], "gain": 0.0}),
        ("mix", {"confusion": [[1.0] * 3] * 3, "variance": [[1.0] * 3], "gain": 0.0}),
        ("mix", {"confusion": [[1.0] * 3] * 3, "variance": [[-1.0] * 3] * 3, "gain": 0.0}),
        ("abstention", [[1]]),
    ],
)
def test_a_damaged_certainty_is_refused_by_name(trained, tmp_path, trust, part, value):
    load_model(change(trained, tmp_path / "sound", trust=trust)).predict([PIXELS], sets=0.9)
    damaged = {**trust, part: value} if part else value
    with pytest.raises(UserError, match=r"config.json is damaged in its description of the model"):
        load_model(change(trained, tmp_path / "damaged", trust=damaged))


LABELS = torch.arange(5) % 3


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (torch.zeros(5, 128), None, "held_out_labels is missing"),
        (None, LABELS, "held_out_features is missing"),
        (
            torch.zeros(5, 64),
            LABELS,
            "held_out_features .5, 64., but a head of .3, 128. and 5 labels",
        ),
        (torch.zeros(4, 128), LABELS, "held_out_features .4, 128."),
        (torch.zeros(128), LABELS[0], "held_out_features .128,."),
        (torch.zeros(5, 128), LABELS[:, None], "held_out_labels .5, 1."),
        (torch.zeros(0, 128), LABELS[:0], "held_out_labels .0,."),
        (torch.zeros(5, 128), LABELS.float(), "held_out_labels has values"),
        (torch.zeros(5, 128).double(), LABELS, "held_out_features has values"),
        (torch.zeros(5, 128).to(torch.float8_e5m2), LABELS, "held_out_features has values"),
        (torch.full((5, 128), float("nan")), LABELS, "held_out_features has values"),
        (torch.full((5, 128), float("inf")).half(), LABELS, "held_out_features has values"),
        (torch.zeros(5, 128), LABELS + 1, "held_out_labels has values"),
        (torch.zeros(5, 128), LABELS - 1, "held_out_labels has values"),
    ],
)
def test_held_out_features_of_another_model_are_refused(
    trained, tmp_path, features, labels, message
):
    sound = {"held_out_features": torch.ones(5, 128), "held_out_labels": LABELS}
    held = load_model(store(trained, tmp_path / "sound", sound)).model.stored.held_out
    assert torch.equal(held.labels, LABELS)
    named = {"held_out_features": features, "held_out_labels": labels}
    changed = {name: tensor for name, tensor in named.items() if tensor is not None}
    with pytest.raises(UserError, match=f"saved holds features of another model.*{message}"):
        load_model(store(trained, tmp_path / "changed", changed))


@pytest.mark.parametrize(
    "tensors",
    [
        {"class_means": torch.zeros(3, 64)},
        {"direction": torch.zeros(64)},
        {"direction": torch.full((128,), float("nan"))},
    ],
)
def test_other_stored_features_of_another_model_are_refused(trained, tmp_path, tensors):
    with pytest.raises(UserError, match=f"saved holds features of another.*{next(iter(tensors))}"):
        load_model(store(trained, tmp_path, tensors))


def store(trained, tmp_path, tensors):
    """Copy the saved model with further tensors in its weights."""
    folder = change(trained, tmp_path)
    weights = folder / "model.safetensors"
    write_tensors(weights, read_tensors(weights) | tensors)
    return folder


def test_counts_of_other_classes_are_refused(trained, tmp_path):
    with pytest.raises(UserError, match=r"config.json .* is damaged"):
        load_model(change(trained, tmp_path, counts=[1]))


@pytest.mark.parametrize("content", [b"null", b"{}", b"\xff", b"[" * 100_000])
def test_damaged_files_of_models_and_runs(trained, tmp_path, content):
    folder = change(trained, tmp_path)
    (folder / "config.json").write_bytes(content)
    with pytest.raises(UserError, match="config.json"):
        load_model(folder)
    for name in ("model.json", "slider.json"):
        path = trained / "run" / name
        before = path.read_bytes()
        path.write_bytes(content)
        try:
            with pytest.raises(UserError, match=name):
                load_model(path.parent) if name == "model.json" else report([path.parent], "r.html")
        finally:
            path.write_bytes(before)


@pytest.mark.parametrize(
    "fields",
    [{"counts": "x"}, {"per_class": [1.0]}, {"sweep": {"0": 3}}, {"evaluated_on": "all"}],
)
def test_a_result_with_other_values_is_refused(trained, tmp_path, fields):
    path = trained / "run" / "result.json"
    before = path.read_text(encoding="utf-8")
    path.write_text(json.dumps(json.loads(before) | fields), encoding="utf-8")
    try:
        for work in (load_model, lambda run: report([run], tmp_path / "r.html")):
            with pytest.raises(UserError, match=f"is damaged: its {next(iter(fields))} "):
                work(trained / "run")
    finally:
        path.write_text(before, encoding="utf-8")


def test_a_result_without_a_field_is_refused(trained):
    path = trained / "run" / "result.json"
    before = path.read_text(encoding="utf-8")
    tree = json.loads(before)
    del tree["ratio"]
    path.write_text(json.dumps(tree), encoding="utf-8")
    try:
        with pytest.raises(UserError, match=r"result.json is damaged: its ratio is missing"):
            load_model(trained / "run")
    finally:
        path.write_text(before, encoding="utf-8")


def unusual_tensors():
    dense = torch.eye(2)
    yield "sparse", dense.to_sparse()
    yield "complex", dense.to(torch.complex64)
    yield "meta", dense.to("meta")
    if torch.backends.quantized.supported_engines:
        yield "quantised", torch.quantize_per_tensor(dense, 0.1, 0, torch.qint8)


@pytest.mark.filterwarnings("ignore")
def test_unusual_tensors_of_a_checkpoint_are_refused(tmp_path):
    for kind, tensor in unusual_tensors():
        torch.save({"fc.weight": tensor}, tmp_path / f"{kind}.pth")
        with pytest.raises(UserError, match=f"{kind}.pth"):
            read_state(tmp_path / f"{kind}.pth")


@pytest.mark.parametrize(
    "alpha",
    [float("nan"), float("inf"), -1, 1e308, 10**400],
    ids=["nan", "inf", "negative", "large", "huge"],
)
def test_no_alpha_that_is_not_a_finite_number(alpha):
    head = DeconfoundHead(4, 3)
    with pytest.raises(UserError, match="alpha"):
        head.folded(alpha)
    with pytest.raises(UserError, match="alpha"):
        head.alpha = alpha
    with pytest.raises(UserError, match="alpha"):
        DeconfoundHead(4, 3, alpha=alpha)
    if alpha != 10**400:
        with pytest.raises(UserError, match="alpha"):
            head.load_state_dict(head.state_dict() | {"alpha": torch.tensor(float(alpha))})
