"""Example photographs: which ones are chosen, and their thumbnails."""

import io

import pyarrow as pa
import pytest
import torch
from PIL import Image

from longtail.data.base import Split
from longtail.evaluation import examples
from longtail.evaluation.examples import choose_examples, draw_thumbnail, make_examples


def draw_logits(images: int = 200, classes: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits that are often wrong, and labels of unequal frequency; the last class has none."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.arange(classes, 0, -1).float()
    weights[-1] = 0
    labels = torch.multinomial(weights, images, replacement=True, generator=generator)
    logits = torch.randn(images, classes, generator=generator)
    logits[torch.arange(images), labels] += 1.2
    return logits, labels


def test_the_choice_is_that_of_a_plain_loop():
    logits, labels = draw_logits()
    images = []
    for row, (values, label) in enumerate(zip(logits.tolist(), labels.tolist(), strict=True)):
        powers = [2.718281828459045**v for v in values]
        best = max(range(len(values)), key=lambda c: values[c])
        images.append((max(powers) / sum(powers), row, label, best))
    images.sort(key=lambda image: (-image[0], image[1]))
    wrong = [image for image in images if image[2] != image[3]]
    accuracy = {}
    for c in range(11):
        own = [image for image in images if image[2] == c]
        right = [image for image in own if image[3] == c]
        accuracy[c] = (len(right) / len(own), -len(own))
    wanted = {image[1] for image in wrong[: examples.MOST_CONFIDENT]}
    for c in sorted(accuracy, key=lambda c: accuracy[c])[: examples.WORST_CLASSES]:
        of_class = [image for image in wrong if image[2] == c]
        wanted |= {image[1] for image in of_class[: examples.PER_CLASS]}
    taken_for = {image[3] for image in wrong if image[1] in wanted}
    for c in taken_for:
        right = [image for image in images if image[2] == image[3] == c]
        wanted |= {image[1] for image in right[:1]}
    found = choose_examples(logits, labels)
    assert {example.row for example in found} == wanted and len(found) == len(wanted)
    shown = {image[1]: image for image in images}
    for example in found:
        probability, _, label, prediction = shown[example.row]
        assert (example.label, example.prediction) == (label, prediction)
        assert example.probability == pytest.approx(probability, rel=1e-5)


def test_no_mistake_and_no_image_leave_an_empty_table():
    labels = torch.tensor([0, 1])
    part = Split(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), labels)
    assert make_examples(torch.eye(2), part).num_rows == 0
    assert make_examples(torch.zeros(0, 2), part.take(torch.arange(0))).num_rows == 0


def test_embeddings_and_inputs_that_are_no_pictures_have_none():
    labels = torch.tensor([0, 1])
    assert make_examples(torch.eye(2), Split(torch.zeros(2, 5), labels)) is None
    spectra = torch.zeros(2, 7, 4, 4, dtype=torch.uint8)
    assert make_examples(torch.eye(2), Split(spectra, labels)) is None


@pytest.mark.parametrize("channels", [1, 3])
def test_a_thumbnail_keeps_small_images_and_shrinks_large_ones(channels):
    image = torch.full((channels, 200, 100), 180, dtype=torch.uint8)
    picture = Image.open(io.BytesIO(draw_thumbnail(image)))
    assert picture.size == (48, 96) and picture.format == "JPEG"
    assert abs(picture.convert("L").getpixel((20, 40)) - 180) < 3
    assert Image.open(io.BytesIO(draw_thumbnail(image[:, :28, :28]))).size == (28, 28)


def test_the_table_names_files_and_stays_small():
    """Noise is the hardest to compress: photographs take a third of it."""
    logits, labels = draw_logits()
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (200, 3, 128, 128), generator=generator, dtype=torch.uint8)
    part = Split(images, labels, pa.array([f"{i}.jpg" for i in range(200)]))
    table = make_examples(logits, part)
    chosen = choose_examples(logits, labels)
    assert table["file"].to_pylist() == [f"{example.row}.jpg" for example in chosen]
    assert table["label"].to_pylist() == [example.label for example in chosen]
    assert table.num_rows <= 60 and table.nbytes < 600_000
    assert make_examples(logits, Split(images, labels))["file"].null_count == table.num_rows
