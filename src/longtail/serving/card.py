"""Model cards: Markdown that describes an exported model."""

import html
import json
import re

from longtail.core.names import count_noun, make_printable
from longtail.core.plain import fits
from longtail.evaluation import tables
from longtail.evaluation.ranking import DEFAULT
from longtail.methods import registry
from longtail.serving.answers import list_added
from longtail.serving.model import ModelDescription


def render_card(about: ModelDescription, name: str) -> str:
    """Return the card of the model in the file or folder called `name`.

    Names in it are texts: they cannot add links, HTML or code to the page that shows the card.
    """
    blueprint, method = about.blueprint, escape_text(about.training.get("method", "model"))
    data = escape_text(tables.data_name({"data": "unnamed data", "ratio": None, **about.training}))
    kind, inputs, normalisation = "tabular", "embeddings", ""
    if not blueprint.embeddings:
        kind, inputs = "image", '["a.jpg", "b.png"]'
        mean, std = (", ".join(f"{x:.4g}" for x in xs) for xs in (blueprint.mean, blueprint.std))
        normalisation = (
            f"\nThe model computes `(x / 255 - mean) / std` with mean ({mean}) and std ({std}).\n"
        )
    return f"""---
library_name: longtail
pipeline_tag: {kind}-classification
tags:
- long-tail
---
# {method} on {data}

A classifier of {len(about.classes)} classes, {quote_code(blueprint.backbone)}, written by \
longtail {escape_text(about.version)}. {_describe_alpha(about)}

```python
import longtail as lt

model = lt.load_model({quote_python(name)})
for found in model.predict({inputs}):
    print({"found.name, found.probability" if about.thresholds is None else "found.labels"})
```

Input: {about.preprocessing}.
{normalisation}Output: logits `(batch, classes)`; {_describe_probabilities(about)}.

## Figures

{_describe_accuracy(about)}

## Training

{_describe_training(about)}

Classes: {", ".join(map(quote_code, about.classes))}.
"""


def escape_text(value: object) -> str:
    """Escape a value for Markdown, so that it is shown as it is."""
    text = html.escape(_to_line(value), quote=False)
    return re.sub(r"([\\`*_{}\[\]#!|~])", r"\\\1", text)


def quote_code(value: object) -> str:
    """Quote a value as code in Markdown, between more backticks than it has in a row itself."""
    line = _to_line(value)
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line.startswith("`") or line.endswith("`") or not line.strip() else ""
    return f"{fence}{space}{line}{space}{fence}"


def quote_python(value: str) -> str:
    """Quote a text for a block of Python code, which no backtick in it may end."""
    return json.dumps(_to_line(value), ensure_ascii=False).replace("`", "\\x60")


def _to_line(value: object) -> str:
    return make_printable(str(value))


def _describe_probabilities(about: ModelDescription) -> str:
    if about.thresholds is not None:
        own = "a threshold of their own" if set(about.thresholds) != {DEFAULT} else f"{DEFAULT:g}"
        return (
            "their sigmoids are the probabilities of the labels, and `predict` returns the labels "
            f"that reach {own}"
        )
    if about.trust is None:
        return "`predict` returns their softmax"
    return (
        f"`predict` returns calibrated probabilities, fitted on {about.trust['images']:,} held-out "
        "images"
    )


def _describe_alpha(about: ModelDescription) -> str:
    if about.alpha is None:
        rule = about.training.get("rule")
        return f"Its post-hoc rule is {quote_code(rule)}." if rule else "It has no alpha."
    if about.dial:
        return (
            f"Alpha is an input, {about.alpha:g} by default. A larger alpha removes more of the "
            "frequent classes' advantage, 0 removes none."
        )
    return (
        f"Alpha {about.alpha:g} is folded into its weights: the total direct effect adds no cost, "
        "and alpha is fixed."
    )


def _describe_accuracy(about: ModelDescription) -> str:
    metrics = about.metrics
    if not metrics:
        return "It was not evaluated after its head was changed."
    part = tables.PARTS.get(metrics.get("evaluated_on", ""), "unknown")
    shown = (*tables.SPLITS, *(["class_mean"] if "class_mean" in metrics else []))
    cells = ["-" if metrics.get(name) is None else f"{metrics[name]:.1f}" for name in shown]
    at = ", at the last epoch" if "epochs" in about.training else ""
    at += "" if metrics.get("alpha") is None else f", at alpha {metrics['alpha']:g}"
    rows = [cells]
    if answers := metrics.get("answers"):
        rows.append(["-" if answers.get(n) is None else f"{answers[n]:.1f}" for n in shown])
    text = (
        f"{tables.markdown([name.replace('_', ' ') for name in shown], rows)}\n"
        f"{_name_measure(about)} in percent on the {part} part{at}. Many, medium and few are "
        "classes with more than 100, 20 to 100 and fewer than 20 training images."
    )
    if answers:
        text += (
            "\nThe second row is for the most probable class, which `predict` returns; the first "
            "for the largest logit."
        )
    if about.alpha is not None and about.alpha != metrics.get("alpha"):
        text += f"\nIt was not evaluated at the alpha of this file, {about.alpha:g}."
    return text


def _name_measure(about: ModelDescription) -> str:
    return "Accuracy" if about.thresholds is None else "Mean average precision of the labels,"


def _describe_training(about: ModelDescription) -> str:
    training, added = about.training, list_added(about)
    counts = about.counts[: len(about.counts) - len(added)] or about.counts  # without added ones
    epochs = training.get("epochs")
    length = count_noun(epochs, "epoch") if isinstance(epochs, int) else f"{epochs} epochs"
    how = escape_text(f"seed {training.get('seed')}, {length}")
    if "weights" in training:
        how += f" from the weights {quote_code(training['weights'])}"
    if "checkpoint" in training:
        how = f"the weights of {quote_code(training['checkpoint'])}, without further training"
    number = training.get("held_out")
    held = f", {number:,} of them held out from training" if fits(number, int) and number else ""
    size = (
        f"{sum(counts):,} images of {len(counts)} classes, {max(counts):,} of the most frequent "
        f"and {min(counts):,} of the rarest"
    )
    if about.thresholds is not None:  # the counts add up to labels
        size = (
            f"Images with several labels each, of {len(counts)} classes: {max(counts):,} images "
            f"have the most frequent label and {min(counts):,} the rarest"
        )
        held = held and f"; {number:,} images were held out from training"
    text = f"{size}{held}; {how}; subset SHA-256 {quote_code(training.get('subset_sha256'))}."
    if "verdict" in training:
        text += f"\n{escape_text(training['verdict'])}"
    if "adapted_to" in training:
        text += f"\nAdapted to {escape_text(training['adapted_to'])}."
    if added:
        text += (
            f"\nAdded afterwards, from {sum(about.counts) - sum(counts):,} photographs in all: "
            f"{', '.join(map(quote_code, added))}. No held-out image shows these classes."
        )
    method = registry().get(str(training.get("method")))
    if method and (paper := method().paper):
        address = f"https://arxiv.org/abs/{paper.arxiv}"
        text += f"\nMethod: [{paper.authors} {paper.year}]({address})."
    return text
