"""Every figure equals that of LVIS's own package, on LVIS's own annotations."""

import json

import numpy as np
import pytest
from perturbed import perturbed

from longtail.detection.average_precision import lvis_json, measure
from longtail.detection.data.dataset import read

REASON = "it needs the official API, which `make integrations` installs"
NAMES = {
    **{"AP": "AP", "AP50": "AP50", "AP75": "AP75", "APs": "AP_s", "APm": "AP_m", "APl": "AP_l"},
    **{"APr": "AP_r", "APc": "AP_c", "APf": "AP_f", "AR@300": "AR"},
    **{"ARs@300": "AR_s", "ARm@300": "AR_m", "ARl@300": "AR_l"},
}
"""Our names of the figures by theirs."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it calls Logger.warn
@pytest.mark.parametrize("flat", [0.0, 0.05])
def test_equals_the_official_api(shared, tmp_path, monkeypatch, flat):
    for name in ("cv2", "pycocotools", "lvis"):
        pytest.importorskip(name, reason=REASON)
    from lvis import LVIS, LVISEval, LVISResults

    monkeypatch.setattr(np, "float", float, raising=False)  # it is older than numpy 1.24
    path = flatten_boxes(shared / "lvis" / "lvis_val_100.json", tmp_path / "val.json", flat)
    data = read(path, path.parent)
    found = list(perturbed(data, seed=2))
    ours = measure(data, found)
    truth = LVIS(str(path))
    for kind, suffix in (("segm", ""), ("bbox", "_bbox")):
        official = LVISEval(truth, LVISResults(truth, lvis_json(data, found)), kind)
        official.run()
        expected = {NAMES[name]: 100 * value for name, value in official.results.items()}
        figures = {name: ours[f"{name}{suffix}"] for name in NAMES.values()}
        assert figures == pytest.approx(expected, abs=1e-6)


def flatten_boxes(path, out, part):
    """Write a copy of an annotation file in which this part of the boxes has no width."""
    content = json.loads(path.read_text())
    random = np.random.RandomState(0)
    for each in content["annotations"]:
        if random.rand() < part:
            each["bbox"][2] = 0
    out.write_text(json.dumps(content))
    return out
