"""Files that are damaged, strange or malicious are refused, and nothing of them runs."""

import json
import pickle
import shutil
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import longtail as lt
from helpers import tiny_config, tiny_data
from longtail.core.errors import UserError
from longtail.runs.fit import fit_all
from longtail.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    out, data = tmp_path_factory.mktemp("vectors"), tiny_data(images=False)
    config = tiny_config(epochs=1, backbone="identity")
    return fit_all(config, ["deconfound-tde"], [0], out=out / "run", data=data)[0]


@pytest.fixture(scope="module")
def files(run, tmp_path_factory) -> dict[str, Path]:
    """One whole file of each format; the ONNX one is written by hand, which is quicker."""
    out = tmp_path_factory.mktemp("files")
    found = {"safetensors": lt.export(run, "safetensors", out / "m.safetensors")}
    about = lt.load_model(found["safetensors"]).about
    inputs = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["batch", 6])
    outputs = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3])
    weight = helper.make_tensor("weight", TensorProto.FLOAT, (6, 3), [0.5] * 18)
    node = helper.make_node("MatMul", ["embeddings", "weight"], ["logits"])
    graph = helper.make_graph([node], "model", [inputs], [outputs], [weight])
    opset = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    helper.set_model_props(model, {"longtail": json.dumps(about.to_json())})
    found["onnx"] = out / "m.onnx"
    onnx.save(model, found["onnx"])
    return found


@pytest.mark.parametrize("kind", ["safetensors", "onnx"])
def test_a_file_that_was_cut_short_is_refused(kind, files, tmp_path):
    whole = files[kind].read_bytes()
    assert lt.load_model(files[kind]).logits(torch.rand(2, 6)).shape == (2, 3)
    for part in range(20):
        path = tmp_path / f"{part}.{kind}"
        path.write_bytes(whole[: len(whole) * part // 20])
        with pytest.raises(
            UserError, match=rf"{part}\.{kind} (is no|is not an|was not written|is dam)"
        ):
            lt.load_model(path)


class Evil:
    """Unpickling it writes a file."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self):
        return Path.write_text, (self.mark, "run")


@pytest.fixture
def mark(tmp_path) -> Path:
    return tmp_path / "mark"


def test_the_pickle_would_write_a_file(mark):
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists()


@pytest.mark.parametrize(
    "suffix", ["pt", "pth", "pkl", "ckpt", "bin", "safetensors", "onnx", "pt2"]
)
@pytest.mark.parametrize("save", [pickle.dump, torch.save])
def test_a_pickle_is_refused_under_any_name(suffix, save, mark, tmp_path):
    with (tmp_path / f"model.{suffix}").open("wb") as file:
        save(Evil(mark), file)
    with pytest.raises(UserError, match=f"model.{suffix} (was not opened|is no|is not an)"):
        lt.load_model(tmp_path / f"model.{suffix}")
    assert not mark.exists()


def test_a_pickle_in_a_saved_folder_is_not_read(run, mark, tmp_path):
    folder = lt.load_model(run).save_pretrained(tmp_path / "saved")
    evil = pickle.dumps(Evil(mark))
    (folder / "pytorch_model.bin").write_bytes(evil)
    lt.load_model(folder)
    (folder / "model.safetensors").write_bytes(evil)
    with pytest.raises(UserError, match="is not a safetensors file"):
        lt.load_model(folder)
    assert not mark.exists()


def test_a_torch_export_file_is_left_to_torch(tmp_path):
    (tmp_path / "m.pt2").touch()
    with pytest.raises(UserError, match=r"m\.pt2 .* torch\.export\.load.* \.safetensors"):
        lt.load_model(tmp_path / "m.pt2")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda about: about.pop("classes"), "was not written by longtail export"),
        (lambda about: about.update(format=99), "has format 99, this version reads 1"),
        (lambda about: about["classes"].append("d"), "of 4 classes"),
        (
            lambda about: (about["classes"].append("d"), about["counts"].append(1)),
            "names 4 classes, but its head has 3",
        ),
        (lambda about: about["blueprint"].update(backbone="hf-hub:a/resnet18"), "unknown backbone"),
        (lambda about: about["blueprint"].update(shape=[0]), "does not say which model"),
        (lambda about: about["blueprint"].update(attention=[4]), "does not say which model"),
        (lambda about: about["blueprint"].update(attention=[4, 1, 1]), "weights of another model"),
        (lambda about: about["blueprint"]["head"].update(kind="Popen"), "unknown kind of head"),
        (lambda about: about["blueprint"]["head"].update(kind="NormalisedHead"), "unknown kind"),
        (lambda about: about["blueprint"]["head"].update(strange=1), "cannot be built"),
        (lambda about: about["blueprint"]["head"].update(dim=8), "features of another model"),
        (
            lambda about: about["blueprint"]["head"].update(classes=10**15),
            "does not say which model",
        ),
    ],
)
def test_a_description_that_is_wrong_is_refused(change, said, run, tmp_path):
    folder = lt.load_model(run).save_pretrained(tmp_path / "saved")
    about = json.loads((folder / "config.json").read_text())
    change(about)
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(UserError):
        lt.load_model(folder)
    weights = folder / "model.safetensors"
    save_file(load_file(weights), weights)  # without the description that it is compared with
    with pytest.raises(UserError, match=said):
        lt.load_model(folder)


def test_what_is_no_model_of_ours_says_so(run, files, tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        lt.load_model(tmp_path / "nowhere")
    with pytest.raises(UserError, match="neither a run"):
        lt.load_model(tmp_path)
    with pytest.raises(UserError, match=r"last\.pt was not opened"):
        lt.load_model(run.folder / "last.pt")
    (tmp_path / "photo.jpg").touch()
    with pytest.raises(UserError, match=r"photo\.jpg is not a file that longtail reads\. Pass"):
        lt.load_model(tmp_path / "photo.jpg")
    for name in ("pytorch_model.bin", "checkpoint.pth.tar", "model.PTH"):
        (tmp_path / name).touch()
        with pytest.raises(UserError, match=f"{name} was not opened: .* can run code"):
            lt.load_model(tmp_path / name)
    model = onnx.load(files["onnx"])
    about = json.loads(model.metadata_props[0].value)
    about["classes"].pop()
    about["counts"].pop()
    model.metadata_props[0].value = json.dumps(about)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match="names 2 classes, but its graph has others"):
        lt.load_model(tmp_path / "other.onnx")
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(UserError, match="was not written by longtail export"):
        lt.load_model(tmp_path / "other.onnx")


def test_a_copy_of_a_run_without_its_data_is_enough(run, tmp_path):
    folder = shutil.copytree(run.folder, tmp_path / "elsewhere")
    (folder / "last.pt").unlink()
    rows = torch.rand(4, 6)
    assert_close(lt.load_model(folder).logits(rows), lt.load_model(run).logits(rows))
