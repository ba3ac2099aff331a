"""The picture of the tail has a bar for each class, in the order and the colour of its count."""

import re
from xml.etree import ElementTree

from longtail.reporting.tail_picture import draw_tail

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_sorted_and_coloured_by_split() -> None:
    tree = ElementTree.fromstring(draw_tail(["a", "b & <c>", "d"], [20, 150, 3]))
    bars = tree.findall(f"{SVG}rect")
    assert [bar.findtext(f"{SVG}title") for bar in bars] == ["b & <c>: 150", "a: 20", "d: 3"]
    splits = [re.search(r"--(\w+)", bar.get("style", "")).group(1) for bar in bars]
    assert splits == ["many", "medium", "few"]
    heights = [float(bar.get("height", "")) for bar in bars]
    assert abs(heights[0] / heights[1] - 150 / 20) < 0.05
    texts = [text.text for text in tree.iter(f"{SVG}text")]
    assert texts == ["100", "20", "150 training images", "b & <c>, 150", "d, 3"]


def test_a_long_name_is_short_only_on_a_narrow_screen() -> None:
    name = "Tomato leaf mosaic virus"
    tree = ElementTree.fromstring(draw_tail(["a", name], [20, 3]))
    texts = {text.get("class"): text.text for text in tree.iter(f"{SVG}text")}
    assert texts["roomy"] == f"{name}, 3" and texts["narrow"] == "Tomato leaf mosai…, 3"


def test_thousands_of_classes_share_bars() -> None:
    names = [f"class {number}" for number in range(8142)]
    tree = ElementTree.fromstring(draw_tail(names, list(range(8142, 0, -1))))
    titles = [bar.findtext(f"{SVG}title") for bar in tree.findall(f"{SVG}rect")]
    assert len(titles) <= 300
    assert re.findall(r"class \d+", " ".join(titles)) == names


def test_a_class_without_images_has_no_bar() -> None:
    tree = ElementTree.fromstring(draw_tail(["a", "b"], [1, 0]))
    assert [float(bar.get("height", "")) > 0 for bar in tree.findall(f"{SVG}rect")] == [True, False]
