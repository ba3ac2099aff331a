"""transformers: the script of the page, image and text classifiers, saving and loading."""

import pytest
import torch

import longtail as lt

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
from longtail.integrations import huggingface as bridge  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its surroundings
LABELS = torch.arange(3).repeat_interleave(torch.tensor([30, 9, 3]))
TAIL = lt.Tail.of(LABELS)
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}


def text_model():
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=20, intermediate_size=16, **SMALL)
    return transformers.AutoModelForSequenceClassification.from_config(config)


class Texts(torch.utils.data.Dataset):
    """Sentences of five words, two of which name the class."""

    def __init__(self, labels):
        generator = torch.Generator().manual_seed(0)
        self.labels = labels
        self.words = torch.randint(5, 20, (len(labels), 5), generator=generator)
        self.words[:, 1:3] = labels[:, None] + 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def make_trainer(model, folder, kind=transformers.Trainer, **options):
    values = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "seed": 0, **options}
    return kind(
        model,
        transformers.TrainingArguments(str(folder), **values),
        train_dataset=Texts(LABELS),
        eval_dataset=Texts(torch.arange(3).repeat(3)),
        compute_loss_func=bridge.make_loss(TAIL, "balanced-softmax"),
        compute_metrics=bridge.make_metrics(TAIL),
        callbacks=[bridge.TailCallback()],
    )


def test_the_script_of_the_page_runs(run_page, capsys):
    names = run_page("huggingface")
    images = names["test"].images
    expected = names["model"].eval()(pixel_values=images).logits
    assert torch.equal(names["loaded"](pixel_values=images).logits, expected)
    assert "eval_few" in capsys.readouterr().out


def test_a_text_classifier_learns_and_is_loaded_again(tmp_path):
    model = text_model()
    head = bridge.swap_head(model, TAIL, alpha=0.5, tau=8.0)
    assert model.classifier is head
    trainer = make_trainer(model, tmp_path, num_train_epochs=15, learning_rate=5e-3, adam_beta1=0.8)
    trainer.train()
    assert head.mean_feature.any() and head.momentum.item() == pytest.approx(0.8)
    alpha = bridge.choose_alpha(trainer, trainer.eval_dataset)
    figures = trainer.evaluate()
    assert figures["eval_class_mean"] > 80 and float(head.alpha) == alpha
    assert {"eval_overall", "eval_medium", "eval_few"} <= set(figures)
    model.eval()
    words = trainer.eval_dataset.words
    with torch.no_grad():
        features = model.dropout(model.bert(words).pooler_output)
        assert alpha == lt.choose_alpha(head, features, trainer.eval_dataset.labels)
        model.save_pretrained(tmp_path / "saved")
        loaded = bridge.load_classifier(tmp_path / "saved")
        assert torch.equal(loaded(words).logits, model(words).logits)
    assert type(loaded) is type(model)
    assert (loaded.classifier.tau, loaded.classifier.momentum.item()) == (8.0, pytest.approx(0.9))
    loaded.save_pretrained(tmp_path / "again")
    again = bridge.load_classifier(tmp_path / "again").train()
    again(words)  # the mean goes on
    assert not torch.equal(again.classifier.mean_feature, head.mean_feature)


def test_a_network_of_timm_is_loaded_again(tmp_path):
    import timm

    if not hasattr(timm.models, "save_for_hf"):
        pytest.skip("this version of timm has no save_for_hf")
    torch.manual_seed(0)
    start = timm.create_model("test_resnet")
    timm.models.save_for_hf(start, tmp_path / "timm", safe_serialization=True)
    model = transformers.AutoModelForImageClassification.from_pretrained(
        tmp_path / "timm", num_labels=3, ignore_mismatched_sizes=True
    )
    assert torch.equal(model.timm_model.conv1[0].weight, start.conv1[0].weight)
    head, images = bridge.swap_head(model, TAIL), torch.rand(2, 3, 32, 32)
    model.train()(pixel_values=images)
    assert head.mean_feature.any()
    model.eval().save_pretrained(tmp_path / "saved")
    loaded = bridge.load_classifier(tmp_path / "saved")
    expected = model(pixel_values=images).logits
    torch.testing.assert_close(loaded(pixel_values=images).logits, expected)


def test_accumulated_batches_have_the_loss_of_the_whole(tmp_path):
    """Cross-entropy over two parts of 6 equals one of 12, so the weights are the same."""
    weights = []
    for size, parts in ((12, 1), (6, 2)):
        model = text_model()
        model.config.hidden_dropout_prob = 0.0
        for layer in model.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
        bridge.swap_head(model, TAIL)
        torch.manual_seed(1)
        torch.nn.init.uniform_(model.classifier.weight)
        make_trainer(
            model, tmp_path, max_steps=2, optim="sgd", learning_rate=0.1, max_grad_norm=0.0,
            per_device_train_batch_size=size, gradient_accumulation_steps=parts,
        ).train()  # fmt: skip
        weights.append(model.classifier.weight.detach().clone())
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-4, atol=1e-5)


def test_a_sampler_of_the_tail_feeds_the_trainer(tmp_path):
    seen = []

    class Balanced(transformers.Trainer):
        def _get_train_sampler(self, *_):
            return TAIL.sampler("class", rank=0, world=1)

        def compute_loss(self, model, inputs, *args, **options):
            seen.extend(inputs["labels"].tolist())
            return super().compute_loss(model, inputs, *args, **options)

    model = text_model()
    bridge.swap_head(model, TAIL)
    make_trainer(model, tmp_path, Balanced, num_train_epochs=2).train()
    assert torch.bincount(torch.tensor(seen)).tolist() == [28, 28, 28]


def test_soft_labels_of_mixup_have_the_loss_of_the_whole():
    """The Trainer counts every number of soft labels (B, C) as an item."""
    logits, target = torch.randn(6, 3), torch.rand(6, 3).softmax(1)
    compute, items = bridge.make_loss(TAIL, "cross-entropy"), target.ne(-100).sum()
    parts = [compute({"logits": logits[i]}, target[i], items) for i in ([0, 1, 2, 3], [4, 5])]
    torch.testing.assert_close(sum(parts), TAIL.loss("cross-entropy")(logits, target))


def test_the_most_probable_class_of_soft_labels_counts(tmp_path):
    model, hard = text_model(), Texts(torch.arange(3).repeat(3))
    bridge.swap_head(model, TAIL)
    trainer, soft = make_trainer(model, tmp_path), Texts(torch.arange(3).repeat(3))
    trainer.model.classifier.mean_feature.copy_(torch.rand(16))
    soft.labels = 0.2 + 0.4 * torch.eye(3)[hard.labels]
    found = [bridge.choose_alpha(trainer, data) for data in (hard, soft)]
    assert found[0] == found[1]
    figures = [trainer.predict(data).metrics["test_class_mean"] for data in (hard, soft)]
    assert figures[0] == figures[1]


def test_refused_arguments(tmp_path):
    model = text_model()
    with pytest.raises(lt.UserError, match="no linear layer with 7 outputs: build it for 7"):
        bridge.swap_head(model, lt.Tail([1] * 7))
    model.save_pretrained(tmp_path)
    with pytest.raises(lt.UserError, match="holds no head of longtail: load it by from_pretrained"):
        bridge.load_classifier(tmp_path)
    with pytest.raises(lt.UserError, match="has no normalised head: swap its last layer first"):
        bridge.choose_alpha(make_trainer(model, tmp_path), [])
    head, words = bridge.swap_head(model, TAIL, alpha=0.5), Texts(LABELS).words
    with pytest.raises(lt.UserError, match="the data has no labels"):
        bridge.choose_alpha(make_trainer(model, tmp_path), [{"input_ids": row} for row in words])
    assert head.alpha == 0.5
    model.config.architectures = ["TheirOwn"]
    model.config.save_pretrained(tmp_path / "theirs")
    with pytest.raises(lt.UserError, match="transformers has no class 'TheirOwn'"):
        bridge.load_classifier(tmp_path / "theirs")
