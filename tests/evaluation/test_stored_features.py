"""Features that a model file holds: which held-out images are chosen, and how they are stored."""

import pytest
import torch

from longtail.evaluation.stored_features import MOST_IMAGES, StoredFeatures, choose_images
from longtail.methods.base import HeldOut


@pytest.mark.parametrize("most", [1, 5, 6, 11, 20, 37, 38, 100])
def test_classes_take_turns(most):
    sizes = [1, 20, 0, 3, 9, 5]  # of the classes, whose images are mixed
    labels = [c for turn in range(20) for c, n in enumerate(sizes) if turn < n]
    chosen = choose_images(torch.tensor(labels), most).tolist()
    assert chosen == sorted(set(chosen)) and len(chosen) == min(most, len(labels))
    left, given, whole = list(sizes), [0] * 6, 0
    while sum(min(n, 1) for n in left) + sum(given) <= most and any(left):  # whole turns
        for c in range(6):
            if left[c]:
                left[c] -= 1
                given[c] += 1
        whole += 1
    found = [sum(labels[place] == c for place in chosen) for c in range(6)]
    for c in range(6):
        assert found[c] in ((given[c], given[c] + 1) if left[c] else (given[c],))
    if most >= 5:
        assert whole and all(found[c] for c in range(6) if sizes[c])


def test_the_choice_is_random_and_the_same_every_time():
    labels = torch.arange(300) % 3
    chosen = choose_images(labels, 60)
    assert torch.equal(chosen, choose_images(labels, 60))
    assert [int((labels[chosen] == c).sum()) for c in range(3)] == [20, 20, 20]
    assert 100 < chosen.double().mean() < 200  # not the first ones
    partial = [int(choose_images(torch.arange(n) % 7, 3).sum()) for n in range(7, 70, 7)]
    assert len(set(partial)) > 1  # nor always the first classes


def held_out(images: int, classes: int, scale: float = 1.0) -> HeldOut:
    x = torch.randn(images, 4, generator=torch.Generator().manual_seed(0))
    return HeldOut(scale * x, torch.arange(images) % classes)


def test_features_are_stored_in_half_precision_and_read_back():
    held, means = held_out(30, 3), torch.eye(3, 4)
    stored = StoredFeatures.of(means, held)
    assert torch.equal(stored.held_out.features, held.features.half())
    assert torch.equal(stored.held_out.labels, held.labels)
    tensors = stored.to_tensors()
    assert set(tensors) == {"class_means", "held_out_features", "held_out_labels"}
    again = StoredFeatures.read(tensors, (3, 4), "m")
    assert again.class_means is means and again.held_out == stored.held_out
    huge = held_out(30, 3, scale=1e6)
    assert torch.equal(StoredFeatures.of(means, huge).held_out.features, huge.features)


def test_at_most_so_many_images_are_stored_unless_there_are_more_classes():
    many = StoredFeatures.of(torch.zeros(3, 4), held_out(MOST_IMAGES + 5, 3)).held_out
    assert many.features.shape == (MOST_IMAGES, 4) and len(many.labels) == MOST_IMAGES
    classes = MOST_IMAGES + 10
    one = StoredFeatures.of(torch.zeros(classes, 4), held_out(2 * classes, classes)).held_out
    assert sorted(one.labels.tolist()) == list(range(classes))


def test_nothing_is_stored_of_several_labels_or_features_that_are_no_numbers():
    held, means = held_out(30, 3), torch.eye(3, 4)
    several = HeldOut(held.features, torch.eye(3)[held.labels])
    broken = HeldOut(held.features / 0, held.labels)
    for none in (None, several, broken):
        assert set(StoredFeatures.of(means, none).to_tensors()) == {"class_means"}
