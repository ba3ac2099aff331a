"""An audit finds each planted fault and no other, and shows it as text, JSON and a page."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

import longtail as lt
from browser import CHROMIUM, Browser
from helpers import smooth_photo
from longtail.cli.audit import fit_encoding
from longtail.cli.parser import main
from longtail.reporting.audit import Audit

ROTATED = 6
"""An EXIF orientation: turned by a quarter."""


class Folder:
    """A data set of class folders, into which tests plant faults."""

    def __init__(self, root: Path):
        self.root, self.seed = root, 0

    def add(self, name: str, image: Image.Image | None = None, **options: object) -> Path:
        """Write an image, by default one that is like no other."""
        self.seed += 1
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (image or smooth_photo(self.seed)).save(path, **options)
        return path

    def files(self) -> list[Path]:
        """List all images."""
        return sorted(self.root.rglob("*.png"))

    def copy(self, name: str, copy: str) -> None:
        """Write the bytes of one image to another file."""
        self.add(copy).write_bytes((self.root / name).read_bytes())


@pytest.fixture
def photos(tmp_path: Path) -> Folder:
    """Four classes in three parts, without a fault."""
    folder = Folder(tmp_path / "photos")
    for part, number in (("train", 4), ("val", 2), ("test", 2)):
        for name in "abcd":
            for image in range(number):
                folder.add(f"{part}/{name}/{image}.png")
    return folder


def found(audit: Audit) -> dict[str, list[tuple[str, ...]]]:
    """The rows, or the notes of what has no rows, by kind of finding."""
    return {
        finding["kind"]: [
            tuple(f"{row['part']}/{row['name']}" for row in item["rows"]) or (item["note"],)
            for item in finding["items"]
        ]
        for finding in audit.to_json()["findings"]
    }


def test_faultless_data_has_no_finding(photos: Folder) -> None:
    assert found(lt.audit(photos.root)) == {}
    assert "Nothing is wrong with this data." in str(lt.audit(photos.root))


def plant_unreadable(photos: Folder) -> None:
    photos.add("train/a/broken.jpg").write_bytes(b"not an image")
    photos.add("val/b/empty.png").write_bytes(b"")
    photos.add("val/c/empty.png").write_bytes(b"")
    cut = photos.add("test/a/cut.jpg", smooth_photo(900, (400, 300)))
    cut.write_bytes(cut.read_bytes()[:2000])


def plant_near(photos: Folder) -> None:
    for part, copy in (("train", "train"), ("train", "val")):
        original = smooth_photo(901 + len(copy))
        photos.add(f"{part}/b/original-{copy}.png", original)
        changed = ImageEnhance.Brightness(original.resize((60, 50))).enhance(0.9)
        photos.add(f"{copy}/b/changed.jpg", changed, quality=70)


def plant_symlink(photos: Folder) -> None:
    (photos.root / "train/e").symlink_to(photos.root / "train/a")


def plant_unusual(photos: Folder) -> None:
    photos.add("train/a/tiny.png", smooth_photo(910, (12, 10)))
    photos.add("train/a/wide.png", smooth_photo(911, (600, 80)))
    photos.add("test/d/print.jpg", smooth_photo(912).convert("CMYK"))
    tag = Image.Exif()
    tag[0x0112] = ROTATED
    photos.add("val/d/rotated.jpg", smooth_photo(913), exif=tag)


def plant_single(photos: Folder) -> None:
    photos.add("train/single/0.png")
    for part in ("val", "test"):
        photos.add(f"{part}/single/0.png")


def plant_empty(photos: Folder) -> None:
    (photos.root / "train/nothing").mkdir()


PLANTED: list[tuple[Callable[[Folder], None], dict[str, list[tuple[str, ...]]]]] = [
    (
        plant_unreadable,
        {
            "unreadable": [
                ("train/a/broken.jpg",),
                ("val/b/empty.png",),
                ("val/c/empty.png",),
                ("test/a/cut.jpg",),
            ]
        },
    ),
    (plant_empty, {"empty-classes": [("nothing",)]}),
    (
        lambda photos: photos.copy("train/a/0.png", "train/a/again.png"),
        {"exact-duplicates": [("train/a/0.png", "train/a/again.png")]},
    ),
    (
        lambda photos: photos.copy("train/a/1.png", "train/c/again.png"),
        {"label-conflicts": [("train/a/1.png", "train/c/again.png")]},
    ),
    (
        lambda photos: photos.copy("train/d/2.png", "test/d/leak.png"),
        {"leaks": [("train/d/2.png", "test/d/leak.png")]},
    ),
    (
        plant_near,
        {
            "leaks": [("train/b/original-val.png", "val/b/changed.jpg")],
            "near-duplicates": [("train/b/changed.jpg", "train/b/original-train.png")],
        },
    ),
    (
        lambda photos: photos.add("train/fresh/0.png") and photos.add("train/fresh/1.png"),
        {"no-validation-images": [("fresh",)], "no-test-images": [("fresh",)]},
    ),
    (plant_single, {"single-images": [("single",)]}),
    (
        plant_unusual,
        {
            "odd-sizes": [("train/a/tiny.png",), ("train/a/wide.png",)],
            "odd-modes": [("test/d/print.jpg",)],
            "rotated": [("val/d/rotated.jpg",)],
        },
    ),
]


@pytest.mark.parametrize(("plant", "expected"), PLANTED)
def test_each_fault_alone_is_found(photos: Folder, plant, expected) -> None:
    plant(photos)
    assert found(lt.audit(photos.root)) == expected


def test_every_fault_is_found_at_once_and_no_other(photos: Folder) -> None:
    expected: dict[str, list[tuple[str, ...]]] = {}
    for plant, faults in PLANTED:
        plant(photos)
        for kind, rows in faults.items():
            expected.setdefault(kind, []).extend(rows)
    plant_symlink(photos)
    photos.add("train/loose.png")
    audit = lt.audit(photos.root)
    findings = found(audit)
    link, loose = findings.pop("problems"), findings.pop("ignored")
    assert len(link) == 1 and "train/e is a link to images of" in link[0][0]
    assert len(loose) == 1 and "loose.png" in loose[0][0]
    assert {kind: sorted(rows) for kind, rows in findings.items()} == {
        kind: sorted(rows) for kind, rows in expected.items()
    }
    text = str(audit)
    assert max(map(len, text.replace(str(photos.root), "photos").splitlines())) <= 80
    for finding in audit.findings:
        assert finding.summary in text and finding.advice.split()[0] in text
    assert "--corrupt skip" in text and "--min-count 1" in text
    images = audit.to_json()["images"]
    assert images["modes"].pop("CMYK") == 1 and images["modes"] == {"RGB": images["images"] - 1}
    assert (images["smallest"], images["largest"], images["rotated"]) == ((12, 10), (600, 80), 1)


def test_counts_splits_and_imbalance(photos: Folder) -> None:
    for image in range(30):
        photos.add(f"train/a/more-{image}.png")
    audit = lt.audit(photos.root).to_json()
    assert audit["counts"] == {"train": [34, 4, 4, 4], "val": [2] * 4, "test": [2] * 4}
    assert audit["imbalance"] == 34 / 4
    assert audit["splits"] == {"many": [], "medium": ["a"], "few": ["b", "c", "d"]}


def test_the_command_prints_text_json_and_writes_a_page(photos: Folder, tmp_path, capsys) -> None:
    plant_unreadable(photos)
    (tmp_path / "audit.html").write_text(lt.audit(photos.root).to_html())  # it is replaced
    main(["audit", str(photos.root), "-o", str(tmp_path / "audit.html")])
    text = capsys.readouterr().out
    assert text.startswith(str(lt.audit(photos.root))) and "audit.html" in text
    main(["audit", str(photos.root), "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads(
        json.dumps(lt.audit(photos.root).to_json())
    )
    assert fit_encoding("█ café", "ascii") == "# caf?" and fit_encoding("█", "utf-8") == "█"
    with pytest.raises(SystemExit) as stopped:
        main(["audit", str(tmp_path / "missing")])
    assert stopped.value.code == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows forbids such names")
def test_names_cannot_steer_the_terminal_or_the_page(photos: Folder) -> None:
    evil = "\x1b[31m<script>alert(1)</script>\u202e"
    for part in ("train", "val", "test"):
        photos.add(f"{part}/{evil}/0.png".replace("</", "<"))
    odd = os.fsdecode(b"caf\xe9.png")
    photos.add("train/a/broken.png").rename(photos.root / f"train/a/{odd}")
    (photos.root / f"train/a/{odd}").write_bytes(b"text")
    audit = lt.audit(photos.root)
    for shown in (str(audit), audit.to_html(), audit._repr_html_()):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e\udc80-\udcff]", shown)
        assert "\\x1b[31m" in shown and "\\udce9" in shown
        shown.encode()
    assert "<script" not in audit.to_html()
    json.dumps(audit.to_json()).encode()


def test_names_of_missing_images_cannot_steer_either(photos: Folder) -> None:
    rows = [f"{path.relative_to(photos.root)},{path.parent.name}" for path in photos.files()]
    table = photos.root / "t.csv"
    table.write_text("\n".join(["path,label", *rows, "\x1b[31m.png,a"]))
    audit = lt.audit(table)
    for shown in (str(audit), audit.to_html(), audit._repr_html_()):
        assert "\x1b" not in shown and "\\x1b[31m.png" in shown


def test_arrays_and_embeddings_have_no_images(tmp_path: Path) -> None:
    x = np.random.RandomState(0).randn(12, 5).astype(np.float32)
    x[7], x[4, 1] = x[2], np.nan
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(12) % 2)
    audit = lt.audit(tmp_path / "x.npz")
    findings = found(audit)
    assert list(findings) == ["not-finite", "label-conflicts", "nothing-held-out"]
    assert "row 4 of x" in findings["not-finite"][0][0]
    assert len(findings["label-conflicts"][0]) == 2
    assert audit.to_json()["images"] is None and "12 rows of 2 classes" in str(audit)
    assert "--val-fraction" in audit.to_html()


def test_images_in_memory_are_compared(tmp_path: Path) -> None:
    images = np.stack([np.asarray(smooth_photo(seed, (40, 40))) for seed in range(8)])
    images[6] = np.asarray(ImageEnhance.Brightness(smooth_photo(2, (40, 40))).enhance(0.9))
    labels = ["x", "y"] * 4
    audit = lt.audit((images, labels))
    assert [finding.kind for finding in audit.findings] == ["near-duplicates", "nothing-held-out"]
    assert "data:image/jpeg" in audit.to_html()


def test_faults_of_a_table_do_not_stop_an_audit(photos: Folder, tmp_path: Path) -> None:
    rows = [f"{path.relative_to(photos.root)},{path.parent.name},train" for path in photos.files()]
    faults = ["gone.png,a,train", "train/a/0.png,b,train", "train/a/1.png,z,test"]
    faults += ["train/a/2.png,,train", "train/a/3.png,a,tset", ",a,train", "train/b/0.png,-,test"]
    table = tmp_path / "photos" / "t.csv"
    table.write_text("\n".join(["path,label,split", *rows, *faults]))
    audit = lt.audit(table)
    kinds = found(audit)
    assert kinds["unreadable"] == [("train/gone.png",)]
    assert ("train/train/a/0.png", "train/train/a/0.png") in kinds["label-conflicts"]
    problems = [note for (note,) in kinds["problems"]]
    for words in ("no path in 1 of 39", "'tset' (1 row", "two labels", "no label in 1", "'-', 'z'"):
        assert sum(words in problem for problem in problems) == 1, words
    assert len(problems) == 5 and "ignored" not in kinds
    (unreadable,) = (finding for finding in audit.findings if finding.kind == "unreadable")
    assert "gone.png does not exist (1 of" in unreadable.advice
    with pytest.raises(lt.UserError) as caught:
        lt.load(table, image_size=32)
    message = str(caught.value)
    assert message.startswith("6 problems:") and message.count("\n") == 6
    assert all(problem.partition(" in ")[0] in message for problem in problems)
    assert "gone.png does not exist (1 of" in message


def test_a_table_whose_images_are_all_missing_is_audited(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\n1.png,a\n2.png,a\n\x1b.png,b\n")
    audit = lt.audit(table)
    kinds = found(audit)
    assert kinds["unreadable"] == [("train/1.png",), ("train/2.png",), ("train/\x1b.png",)]
    (problem,) = kinds["problems"]
    assert "3 of 3 images are missing" in problem[0] and "--root" in problem[0]
    assert audit.to_json()["counts"] == {"train": [0, 0]} and "ignored" not in kinds
    assert "no class has a training image" in str(audit) and "\x1b" not in str(audit)
    assert "--root" in audit.to_html()
    for corrupt in ("stop", "skip"):
        with pytest.raises(lt.UserError, match="3 of 3 images are missing"):
            lt.load(table, image_size=32, corrupt=corrupt)


def test_most_images_missing_hints_at_the_root(photos: Folder) -> None:
    rows = [f"elsewhere/{number}.png,a" for number in range(4)]
    table = photos.root / "t.csv"
    table.write_text("\n".join(["path,label", "train/a/0.png,a", "train/b/0.png,b", *rows]))
    audit = lt.audit(table)
    assert len(found(audit)["unreadable"]) == 4
    (unreadable,) = (finding for finding in audit.findings if finding.kind == "unreadable")
    assert "4 of 6 images are missing" in unreadable.advice
    assert "pass the folder as --root" in unreadable.advice


def test_an_empty_part_beside_missing_images_is_audited(photos: Folder) -> None:
    table = photos.root / "t.csv"
    rows = ["train/a/0.png,a,train", "train/b/0.png,b,train", "gone.png,a,val", ",a,test"]
    table.write_text("\n".join(["path,label,split", *rows]))
    audit = lt.audit(table)
    kinds = found(audit)
    assert kinds["unreadable"] == [("val/gone.png",)]
    assert audit.to_json()["counts"] == {"train": [1, 1], "val": [0, 0]}
    assert len(kinds["problems"]) == 2


def test_ids_as_labels_are_a_finding(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.random.RandomState(0).randn(120, 2), y=np.arange(120))
    (note,) = next(iter(found(lt.audit(tmp_path / "x.npz"))["problems"]))
    assert "Are they ids of the images?" in note and "--min-count 1" in note


class Items:
    """A map-style data set with an item that raises, and one that is not a number."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        if row == 4:
            raise KeyError("gone")
        image = np.asarray(smooth_photo(row, (40, 40))) / 255
        return image * (np.nan if row == 1 else 1), row % 2


def test_items_that_cannot_be_read_do_not_stop_an_audit() -> None:
    audit = lt.audit(Items())
    kinds = found(audit)
    assert kinds["unreadable"] == [("train/item 1 of the dataset",)]
    assert "item 4 of the dataset cannot be read (KeyError: 'gone')" in kinds["ignored"][0][0]
    assert audit.inspection.counts["train"] == (2, 2)
    data = lt.load(Items(), corrupt="skip")
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    with pytest.raises(lt.UserError, match=r"2 problems:\n- item 4 .*\n- item 1 .*NaN"):
        lt.load(Items())


def test_unreadable_images_are_not_counted(photos: Folder) -> None:
    for image in (photos.root / "train/a").iterdir():
        image.write_bytes(b"not an image")
    audit = lt.audit(photos.root)
    assert audit.inspection.counts["train"] == (0, 4, 4, 4)
    assert found(audit)["empty-classes"] == [("a",)]


def test_other_output_is_refused_before_the_audit(
    photos: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longtail.reporting.audit.audit", lambda *_, **__: 1 / 0)
    with pytest.raises(SystemExit, match="2"):
        main(["audit", str(photos.root), "-o", str(photos.root)])
    assert "is a folder: pass a file, as in -o" in capsys.readouterr().err
    (photos.root / "notes.html").write_text("<title>My notes</title>")
    with pytest.raises(SystemExit, match="2"):
        main(["audit", str(photos.root), "-o", str(photos.root / "notes.html")])
    assert "was not written by longtail" in capsys.readouterr().err


def test_several_processes_do_not_repeat_an_audit(monkeypatch, capsys) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        main(["audit", "photos"])
    assert "2 processes would each do all the work of longtail audit" in capsys.readouterr().err
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_NTASKS", "8")  # a script of sbatch, without srun, is one process
    monkeypatch.setattr("longtail.reporting.audit.audit", lambda *_, **__: exit(0))
    with pytest.raises(SystemExit, match="0"):
        main(["audit", "photos"])


def test_options_without_effect_are_refused(photos: Folder) -> None:
    with pytest.raises(lt.UserError, match="leave out min_count"):
        lt.audit(photos.root, min_count=1)
    with pytest.raises(lt.UserError, match=r"unknown data option 'rot'\. Did you mean 'root'"):
        lt.audit(photos.root, rot=photos.root)


def test_loaded_data_is_audited_as_it_is(photos: Folder) -> None:
    photos.copy("train/a/0.png", "train/a/again.png")
    data = lt.load(photos.root)
    assert found(lt.audit(data)) == {"exact-duplicates": [("train/a/0.png", "train/a/again.png")]}
    with pytest.raises(lt.UserError, match="this data is loaded already"):
        lt.audit(data, min_count=2)


def test_a_long_tail_shows_its_head_middle_and_end(tmp_path: Path) -> None:
    y = np.repeat(np.arange(60), np.arange(60, 0, -1))
    x = np.random.RandomState(0).randn(len(y), 3).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x, y=y)
    audit = lt.audit(tmp_path / "x.npz")
    bars = [line for line in str(audit).splitlines() if "█" in line]
    assert [int(bar.split()[0]) for bar in bars] == [
        *range(13),
        *range(23, 36),
        *range(47, 60),
    ]
    assert bars[0].count("█") == 80 - 2 - 2 - 2
    for shown in (str(audit), audit.to_html()):
        assert "41 classes: 0, 1, 2, 3, 4, 5, 6, 7 and 33 more" in shown


def test_a_run_beside_the_data_names_the_classes_that_would_gain(tmp_path: Path, capsys) -> None:
    y = np.repeat(np.arange(6), (40, 20, 12, 8, 4, 2))
    x = np.random.RandomState(0).randn(len(y), 3).astype(np.float32)
    np.savez(tmp_path / "x.npz", x_train=x, y_train=y, x_test=x + 1, y_test=y)
    options = {"method": "baseline", "epochs": 1, "batch_size": 16}
    run = lt.fit(tmp_path / "x.npz", **options, out=tmp_path / "run")
    result = run.result | {"per_class": [80.0, 70.0, 60.0, 10.0, 40.0, 20.0]}
    run.write("result.json", json.dumps(result))
    audit = lt.audit(tmp_path / "x.npz", run=run)
    outlook = audit.to_json()["run"]
    assert [each["name"] for each in outlook["far_below"]] == ["3"]
    assert outlook["classes"][0]["name"] == "5" and outlook["curve"]["classes"] == 6
    assert "more labels would help most" in str(audit) and "<circle" in audit.to_html()
    main(["audit", str(tmp_path / "x.npz"), "--run", str(tmp_path / "run")])
    assert capsys.readouterr().out == f"{audit}\n"
    run.write("result.json", json.dumps(result | {"per_class": [0.0, 100.0, 0.0, 90.0, 95.0, 5.0]}))
    loose = lt.audit(tmp_path / "x.npz", run=run)
    assert "too loose to tell which classes more labels would help" in " ".join(str(loose).split())
    assert "would help most here" not in str(loose) and "far below" not in str(loose)
    assert "<circle" in loose.to_html() and "Largest gain" not in loose.to_html()
    run.write(
        "result.json", json.dumps(result | {"per_class": [80.0, 81.0, 82.0, 85.0, 88.0, 90.0]})
    )
    flat = lt.audit(tmp_path / "x.npz", run=run)
    assert "too flat to tell which classes more labels would help" in " ".join(str(flat).split())
    assert "would help most here" not in str(flat) and "Largest gain" not in flat.to_html()
    np.savez(tmp_path / "other.npz", x=x, y=np.array(["p", "q"])[y % 2])
    with pytest.raises(lt.UserError, match="was trained on other classes than the data has"):
        lt.audit(tmp_path / "other.npz", run=run)


def test_real_photographs_have_the_known_copies() -> None:
    root = Path(__file__).parents[2].parent / "shared" / "data"
    if not (root / "plantdoc-lt" / "train.parquet").is_file():
        pytest.skip(f"the real data sets are not at {root}")
    audit = lt.audit("plantdoc-lt", root=root)
    kinds = {finding.kind: len(finding.items) for finding in audit.findings}
    assert kinds == {
        "leaks": 20,
        "label-conflicts": 13,
        "exact-duplicates": 1,
        "near-duplicates": 4,
    }


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_page_is_whole_at_every_width(
    photos: Folder, tmp_path: Path, chromium: Browser
) -> None:
    for plant, _ in PLANTED:
        plant(photos)
    photos.add(f"train/{'long' * 30}/0.png")
    page = lt.audit(photos.root).write(tmp_path / "audit.html")
    for width in (390, 1300, 1920):
        chromium.show_at(width)
        chromium.open(page)
        assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
        assert chromium.run("[...document.images].every(image => image.naturalWidth > 0)")
        assert chromium.complaints() == []
        assert all(url.startswith(("data:", "file:")) for url in chromium.requests())
