"""Classifiers on embeddings: scikit-learn's contract, the heads' equations, streams, bad input."""

import math
import pickle
import tracemalloc

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from longtail import (
    CosineTDEClassifier,
    DeconfoundHead,
    DeconfoundTDEClassifier,
    LinearSoftmaxClassifier,
    background_exempt,
)
from longtail.estimators import tde as estimators

KINDS = [DeconfoundTDEClassifier, CosineTDEClassifier, LinearSoftmaxClassifier]
COUNTS = [120, 60, 30, 15, 8, 4]
CENTRES = np.random.RandomState(7).randn(len(COUNTS), 18) * 0.7 + 0.5


def embeddings(counts=COUNTS, seed=0, dtype=np.float64):
    """Non-negative features with a common mean, as a ReLU gives them, and a tail."""
    random = np.random.RandomState(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    features = np.maximum(CENTRES[labels] + random.randn(len(labels), 18), 0)
    order = random.permutation(len(labels))
    return features[order].astype(dtype), labels[order]


def quick(kind=DeconfoundTDEClassifier, **options):
    return kind(**{"epochs": 15, "random_state": 0} | options)


@pytest.mark.filterwarnings("ignore:mean cos")  # the checks standardise their features
@parametrize_with_checks([kind(epochs=15) for kind in KINDS])
def test_scikit_learn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
@pytest.mark.parametrize("heads", [2, 4])  # 18 features: 4 heads need padding
def test_scores_are_those_of_the_head(alpha, heads):
    X, y = embeddings()
    fitted = quick(alpha=alpha, heads=heads).fit(X, y)
    padding = (0, -18 % heads)
    head = DeconfoundHead(18 + padding[1], 6, heads, alpha=alpha).double().eval()
    with torch.no_grad():
        head.weight.copy_(torch.nn.functional.pad(torch.tensor(fitted.coef_), padding))
        head.mean_feature.copy_(
            torch.nn.functional.pad(torch.tensor(fitted.mean_feature_), padding)
        )
        expected = head(torch.nn.functional.pad(torch.tensor(X), padding))
    np.testing.assert_allclose(fitted.decision_function(X), expected, atol=1e-10)
    np.testing.assert_allclose(fitted.predict_proba(X), expected.softmax(1), atol=1e-10)
    assert (fitted.predict(X) == expected.argmax(1).numpy()).all()


@pytest.mark.parametrize("kind", KINDS)
def test_first_weights_are_those_of_the_seed_whoever_else_draws(kind, monkeypatch):
    """They are read off a training that moves nothing, while other threads use torch's numbers."""
    X, y = embeddings(dtype=np.float32)
    seed = int(np.random.RandomState(3).randint(2**31 - 1))
    width, bound = X.shape[1], X.shape[1] ** -0.5
    drawn = torch.rand(len(COUNTS), width, generator=torch.Generator().manual_seed(seed))
    make = kind.head_type

    def made_meanwhile(*sizes, **settings):
        torch.rand(1, device="cpu")
        return make(*sizes, **settings)

    monkeypatch.setattr(kind, "head_type", staticmethod(made_meanwhile))
    still = quick(kind, random_state=3, epochs=1, lr=1e-30, weight_decay=0.0).fit(X, y)
    assert still.coef_ == pytest.approx((2 * drawn - 1).numpy() * bound, abs=1e-6)
    monkeypatch.setattr(kind, "head_type", make)
    for forbidden in ("manual_seed", "set_rng_state"):  # a thread that draws would notice
        monkeypatch.setattr(torch.random, forbidden, None)
        monkeypatch.setattr(torch, forbidden, None)
    before = torch.get_rng_state()
    still.fit(X, y).predict(X)
    still.partial_fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_padding_holds_no_weight():
    X, y = embeddings()
    fitted = quick(heads=4, alpha=1.0).fit(X, y)
    rows = fitted._make_rows(X, X.dtype)
    head = fitted._train_head(rows, y, np.arange(len(y)))
    assert head.weight.shape == (6, 20) and fitted.coef_.shape == (6, 18)
    assert (head.weight[:, 18:] == 0).all()


def test_alpha_changes_without_training():
    X, y = embeddings()
    fitted = quick(alpha="auto").fit(X, y)
    for alpha in (0.0, 2.0):
        again = quick(alpha=alpha).fit(X, y)
        moved = fitted.set_params(alpha=alpha).decision_function(X)
        np.testing.assert_array_equal(moved, again.decision_function(X))
    fitted.set_params(tau=1.0, heads=3)  # these wait for the next fit
    np.testing.assert_array_equal(moved, fitted.decision_function(X))
    with pytest.raises(ValueError, match="call fit again"):
        again.set_params(alpha="auto").predict(X)


def test_auto_alpha_is_chosen_on_held_out_rows():
    X, y = embeddings()
    fitted = quick().fit(X, y)
    assert fitted.alpha_rule_ == "held-out likelihood"
    assert list(fitted.alpha_path_) == [i / 4 for i in range(13)]
    best = min(fitted.alpha_path_.values())
    assert fitted.alpha_ == min(a for a, value in fitted.alpha_path_.items() if value == best)
    np.testing.assert_array_equal(fitted.coef_, quick(alpha=0).fit(X, y).coef_)


@pytest.mark.parametrize("background", [None, 2])
def test_the_path_is_the_likelihood_of_rows_before_they_are_learned(background):
    """The mean over classes of the cross-entropy, at the best of the scales, one row at a time."""
    X, y = embeddings()
    rows, labels = embeddings([5, 4, 3, 2, 1, 0], seed=3)  # the last class has no held-out row
    stream = quick(background=background).partial_fit(X, y, classes=range(6))
    path = {}
    for alpha in (i / 4 for i in range(13)):
        logits = stream.set_params(alpha=alpha).decision_function(rows)
        means = []
        for scale in (2 ** (i / 2) for i in range(-6, 3)):
            losses = [[] for _ in range(5)]
            for row, label in zip(logits, labels, strict=True):
                total = sum(math.exp(scale * (value - row[label])) for value in row)
                losses[label].append(math.log(total))
            means.append(sum(sum(values) / len(values) for values in losses) / 5)
        path[alpha] = min(means)
    stream.set_params(alpha="auto").partial_fit(rows, labels)
    assert stream.alpha_path_ == pytest.approx(path, rel=1e-5)
    assert path[stream.alpha_] == min(path.values())


def test_fit_logs_that_alpha_would_hurt_but_a_stream_does_not_repeat_it(caplog, monkeypatch):
    X, y = embeddings()
    monkeypatch.setattr(estimators, "pick_alpha", min)  # as if 0 were best
    with caplog.at_level("WARNING"):
        fitted = quick().fit(X, y)
    assert fitted.alpha_ == 0 and fitted.alpha_rule_ == "held-out likelihood"
    (message,) = caplog.messages
    assert "held-out images TDE would hurt" in message
    fitted.partial_fit(X, y)
    assert fitted.alpha_ == 0 and len(caplog.messages) == 1


def test_auto_alpha_helps_the_tail():
    X, y = embeddings()
    test, truth = embeddings([100] * 6, seed=1)
    fitted = quick(epochs=40).fit(X, y)
    helped = balanced_accuracy_score(truth, fitted.predict(test))
    plain = balanced_accuracy_score(truth, fitted.set_params(alpha=0).predict(test))
    assert fitted.alpha_ > 0 and helped > plain


def test_auto_alpha_without_labels_where_classes_are_too_small():
    X, y = embeddings([2, 2, 2, 2, 1, 5])
    fitted = quick().fit(X, y)
    assert fitted.alpha_rule_ == "label-free" and fitted.alpha_path_ == {}
    assert fitted.alpha_ == pytest.approx(min(3, 1 / fitted.mean_cos_))


@pytest.mark.parametrize(("alpha", "after"), [("auto", 0.0), (1.5, 1.5)])
def test_centred_features_are_noticed(alpha, after):
    X, y = embeddings()
    model = make_pipeline(StandardScaler(), quick(alpha=alpha))
    with pytest.warns(UserWarning, match="no common direction"):
        model.fit(X, y)
    assert model[-1].alpha_ == after
    model.set_params(deconfoundtdeclassifier__alpha=0).fit(X, y)  # nothing is removed: no warning


def test_background_keeps_its_bias():
    X, y = embeddings()
    names = np.array(["none", "ant", "bee", "cat", "dog", "eel"])
    fitted = quick(alpha=2.0, background="none").fit(X, names[y])
    place = fitted.classes_.tolist().index("none")
    proba, scores = fitted.predict_proba(X), fitted.decision_function(X)
    tde = torch.tensor(clone_state(fitted, background=None).decision_function(X))
    total = torch.tensor(clone_state(fitted, background=None, alpha=0).decision_function(X))
    np.testing.assert_allclose(proba, background_exempt(total, tde, place), atol=1e-10)
    assert (proba.argmax(1) == scores.argmax(1)).all()
    assert (fitted.classes_[proba.argmax(1)] == fitted.predict(X)).all()
    several = clone_state(fitted, background=["none", "ant"]).predict_proba(X)
    np.testing.assert_allclose(several.sum(1), 1)
    for wrong, words in (("cow", "'cow' is not a class"), (list(names), "every class")):
        with pytest.raises(ValueError, match=words):
            clone_state(fitted, background=wrong).predict(X)
        with pytest.raises(ValueError, match=words):
            clone(fitted).set_params(background=wrong).fit(X, names[y])


def clone_state(fitted, **options):
    return pickle.loads(pickle.dumps(fitted)).set_params(**options)


@pytest.mark.parametrize("kind", KINDS)
def test_state_is_numpy(kind):
    X, y = embeddings()
    fitted = quick(kind).fit(X, y).partial_fit(X, y)
    assert not any(isinstance(v, torch.Tensor) for v in vars(fitted).values())
    assert b"torch" not in pickle.dumps(fitted)
    np.testing.assert_array_equal(clone_state(fitted).predict(X), fitted.predict(X))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_types_of_numbers(dtype):
    X, y = embeddings(dtype=dtype)
    fitted = quick(alpha=1.0).fit(X, y)
    expected = np.float64 if dtype == np.float64 else np.float32
    assert fitted.coef_.dtype == fitted.predict_proba(X).dtype == expected


def test_grid_search_and_pipeline():
    X, y = embeddings()
    model = make_pipeline(MaxAbsScaler(), quick(epochs=5))
    grid = {"deconfoundtdeclassifier__alpha": [0.0, 1.0, "auto"]}
    search = GridSearchCV(model, grid, scoring="balanced_accuracy", cv=2).fit(X, y)
    assert len(search.cv_results_["params"]) == 3 and search.score(X, y) > 0.5


def test_normalize_takes_the_length_of_rows_away():
    X, y = embeddings()
    lengths = np.random.RandomState(3).uniform(0.1, 10, (len(y), 1))
    one, other = (quick(alpha=1.0, normalize=True).fit(rows, y) for rows in (X, X * lengths))
    np.testing.assert_allclose(one.decision_function(X), other.decision_function(X), atol=1e-8)


def test_linear_ignores_the_scale_of_features():
    X, y = embeddings()
    small, large = (quick(LinearSoftmaxClassifier).fit(X * s, y) for s in (1e-3, 1e3))
    np.testing.assert_allclose(
        small.decision_function(X * 1e-3), large.decision_function(X * 1e3), atol=1e-9
    )


def test_linear_scales_features_to_one_length():
    X, y = embeddings()
    X *= 5 / np.linalg.norm(X, axis=1, keepdims=True)
    assert quick(LinearSoftmaxClassifier).fit(X, y).scale_ == pytest.approx(5 / 8)
    assert quick(LinearSoftmaxClassifier).fit(np.zeros_like(X), y).scale_ == 1


# ------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("kind", KINDS[:2])  # the linear one takes its scale from the first piece
def test_pieces_of_a_stream_are_the_stream(kind):
    X, y = embeddings()
    whole = quick(kind, batch_size=32).partial_fit(X, y, classes=range(6))
    pieces = quick(kind, batch_size=32)
    for start in range(0, len(y), 64):
        piece = slice(start, start + 64)
        pieces.partial_fit(X[piece], y[piece], classes=range(6) if start == 0 else None)

    np.testing.assert_allclose(pieces.coef_, whole.coef_)


def test_a_class_may_come_late_and_an_unknown_one_is_refused():
    X, y = embeddings()
    early = y < 5
    model = quick().partial_fit(X[early], y[early], classes=range(6))
    for _ in range(30):
        model.partial_fit(X, y)
    assert model.alpha_rule_ == "held-out likelihood" and model.n_iter_ == 31
    assert (model.predict(X[y == 5]) == 5).mean() > 0.5
    with pytest.raises(ValueError, match="label 9 is unknown"):
        model.partial_fit(X[:1], [9])
    with pytest.raises(ValueError, match="differ from those of the first call"):
        model.partial_fit(X, y, classes=range(7))
    with pytest.raises(ValueError, match="the first partial_fit needs classes"):
        quick().partial_fit(X, y)


def test_a_drifting_stream_against_fitting_anew():
    """The frequent class becomes the rare one: a stream reads each row once and keeps up."""
    test, truth = embeddings([50] * 6, seed=9)
    stream, seen, gaps = quick(batch_size=16), [], []
    for step in range(20):
        drift = step / 19
        counts = np.array(COUNTS) * (1 - drift) + np.array(COUNTS[::-1]) * drift
        seen.append(embeddings(counts.astype(int), seed=100 + step))
        stream.partial_fit(*seen[-1], classes=range(6))
        if step in (9, 19):  # each of these reads all that was seen 10 times, and twice for alpha
            X, y = (np.concatenate(part) for part in zip(*seen, strict=True))
            anew = quick(epochs=10, batch_size=64).fit(X, y)
            scores = [balanced_accuracy_score(truth, m.predict(test)) for m in (stream, anew)]
            gaps.append(scores[1] - scores[0])
    assert scores[0] > 0.7 and max(gaps) < 0.1, gaps
    assert stream.alpha_rule_ == "held-out likelihood" and len(stream.alpha_path_) == 13


# -------------------------------------------------------------------------------------- memory


def test_memory_mapped_features_are_never_copied_whole(tmp_path):
    shape, classes = (40_000, 128), 10
    stored = np.memmap(tmp_path / "x.npy", dtype=np.float32, mode="w+", shape=shape)
    labels = np.random.RandomState(0).randint(classes, size=shape[0])
    for start in range(0, shape[0], 4096):
        part = labels[start : start + 4096]
        stored[start : start + 4096] = np.eye(classes, shape[1])[part] * 3 + 1
    stored.flush()
    stored = np.memmap(tmp_path / "x.npy", dtype=np.float32, mode="r", shape=shape)
    model = quick(epochs=1, batch_size=512)
    model.fit(stored[:600], labels[:600])  # what is loaded once is not counted
    tracemalloc.start()
    model.fit(stored, labels)
    right = (model.predict(stored) == labels).mean()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert right > 0.99
    assert peak < stored.nbytes / 2, f"{peak / 1e6:.1f} MB for {stored.nbytes / 1e6:.1f} MB"


def test_a_number_is_fixed_in_the_words_of_a_result():
    from longtail.evaluation.alpha import RULES

    assert quick(alpha=1.0, epochs=1).fit(*embeddings()).alpha_rule_ == "fixed"
    assert {"fixed", "held-out likelihood", "label-free", "no direction"} < set(RULES)


def test_half_precision_whose_sum_overflows_is_checked_a_batch_at_a_time():
    X, y = np.full((60_000, 64), 100, np.float16), np.arange(60_000) % 2
    X[::2, 0] = 300
    model = quick(epochs=1, batch_size=4096, alpha=1.0).fit(X[:600], y[:600])
    tracemalloc.start()
    model._validate(X, y, reset=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.size / 2
    X[59_999, 3] = np.nan
    with pytest.raises(ValueError, match="contains NaN in rows 57344 to 59999"):
        model.predict(X)


def test_rows_are_copied_a_batch_at_a_time(monkeypatch):
    from longtail.estimators import rows

    X, y = embeddings([600] * 6, dtype=np.float32)
    sizes = []
    kept = rows.Rows.batch
    monkeypatch.setattr(rows, "INFERENCE_BATCH", 100)
    monkeypatch.setattr(
        rows.Rows,
        "batch",
        lambda self, i: sizes.append(len(b := kept(self, i))) or b,
    )
    quick(epochs=1, batch_size=64).fit(X, y).predict(X)
    assert max(sizes) == 100


# ----------------------------------------------------------------------------------- bad input


def spoiled(value):
    X, y = embeddings()
    X[3, 4] = value
    return X, y


@pytest.mark.parametrize("name", ["fit", "partial_fit"])
def test_training_that_fails_leaves_what_was_learnt(name):
    X, y = embeddings()
    classifier = quick(LinearSoftmaxClassifier, batch_size=8)
    classifier.partial_fit(X, y, np.unique(y))
    before = pickle.dumps({**vars(classifier), "lr": None})
    classifier.set_params(lr=1e300)
    with pytest.raises(ValueError, match="choose a smaller lr"):
        getattr(classifier, name)(X[y != 0], y[y != 0])
    assert pickle.dumps({**vars(classifier), "lr": None}) == before
    classifier.set_params(lr=0.1).partial_fit(X, y)
    assert np.isfinite(classifier.decision_function(X)).all()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (spoiled(np.nan), "contains NaN"),
        (spoiled(np.inf), "contains infinity"),
        ((np.ones((4, 3)), [1, 1, 1, 1]), "only one class"),
        ((np.ones((4, 3)), [0, 1, 1]), "inconsistent numbers of samples"),
        (([["a", "b"], ["c", "d"]], [0, 1]), "could not convert string"),
        ((np.ones((4, 3)), [0.1, 0.2, 0.3, 0.4]), "Unknown label type"),
    ],
)
def test_bad_data_is_refused(data, words):
    with pytest.raises(ValueError, match=words):
        quick().fit(*data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (spoiled(np.nan), "contains NaN"),
        (spoiled(-np.inf), "contains infinity"),
        ((np.ones((4, 18)), [0, 1, 1]), "inconsistent numbers of samples"),
        ((np.ones((1, 18)), [9]), "label 9 is unknown"),
        ((np.ones((1, 18)), ["cat"]), "label 'cat' is unknown"),
        ((np.ones((1, 17)), [0]), "17 features"),
    ],
)
def test_bad_rows_of_a_stream_change_nothing(data, words):
    X, y = embeddings()
    model = quick().partial_fit(X, y, classes=range(6))
    before = pickle.dumps(vars(model))
    with pytest.raises(ValueError, match=words):
        model.partial_fit(*data)
    if len(data[0]) == len(X):
        with pytest.raises(ValueError, match=words):
            model.predict(data[0])
    assert pickle.dumps(vars(model)) == before


def test_a_stream_of_one_class_or_of_centred_features():
    X, y = embeddings()
    with pytest.raises(ValueError, match="only one class"):
        quick().partial_fit(X, np.zeros_like(y), classes=[0])
    with pytest.warns(UserWarning, match="no common direction"):
        model = quick().partial_fit(X - X.mean(0), y, classes=range(6))
    assert model.alpha_ == 0 and model.alpha_rule_ == "no direction"


def test_sparse_is_refused():
    X, y = embeddings()
    with pytest.raises(TypeError, match="dense data is required"):
        quick().fit(csr_matrix(X), y)
    with pytest.raises(TypeError, match="dense data is required"):
        quick(alpha=1.0).fit(X, y).predict(csr_matrix(X))


def test_a_class_of_one_row_is_the_tail_and_no_mistake():
    X, y = embeddings([40, 20, 10, 5, 3, 1])
    assert quick(epochs=40, batch_size=8).fit(X, y).predict(X[y == 5]) == [5]


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": -1},
        {"alpha": float("nan")},
        {"alpha": "much"},
        {"alpha": None},
        {"heads": 0},
        {"heads": -2},
        {"heads": 1.5},
        {"tau": 0},
        {"gamma": -0.1},
        {"momentum": 1.0},
        {"lr": 0},
        {"lr": "fast"},
        {"epochs": 0},
        {"batch_size": 0},
        {"weight_decay": -1},
        {"device": "toaster"},
    ],
    ids=str,
)
def test_bad_settings_are_refused_by_name(options):
    X, y = embeddings()
    with pytest.raises(ValueError, match=next(iter(options))):
        quick(**options).fit(X, y)


@pytest.mark.parametrize("alpha", [-0.5, float("nan"), "much"])
def test_a_bad_alpha_is_refused_when_predicting(alpha):
    X, y = embeddings()
    fitted = quick(alpha=1.0).fit(X, y)
    with pytest.raises(ValueError, match="alpha"):
        fitted.set_params(alpha=alpha).predict(X)


def test_a_training_that_runs_away_says_so():
    X, y = embeddings()
    with pytest.raises(ValueError, match="smaller lr"):
        quick(LinearSoftmaxClassifier, lr=1e300, epochs=40).fit(X, y)
