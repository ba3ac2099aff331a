"""The model card: what a shipped model is, in Markdown that lies beside it."""

from longtail.evaluation import tables
from longtail.methods import registry
from longtail.serving.model import About


def card(about: About, name: str) -> str:
    """The card of the model in the file or folder called `name`."""
    return "\n".join(
        [
            *_front_matter(about),
            f"# {_title(about)}",
            "",
            _what(about),
            "",
            "```python",
            "import longtail as lt",
            "",
            f'model = lt.load_model("{name}")',
            *_call(about),
            "```",
            "",
            f"Input: {about.preprocessing}.",
            *(["", _normalisation(about)] if not about.blueprint.embeddings else []),
            "Output: logits `(batch, classes)`; their softmax is what `predict` gives.",
            "",
            "## Figures",
            "",
            *_figures(about),
            "",
            "## Training",
            "",
            *_training(about),
            "",
        ]
    )


def _front_matter(about: About) -> list[str]:
    """What model hubs index."""
    kind = "tabular-classification" if about.blueprint.embeddings else "image-classification"
    return ["---", "library_name: longtail", f"pipeline_tag: {kind}", "tags:", "- long-tail", "---"]


def _title(about: About) -> str:
    return f"{about.training.get('method', 'model')} on {_data(about)}"


def _data(about: About) -> str:
    return tables.data_name({"data": "unnamed data", "ratio": None, **about.training})


def _what(about: About) -> str:
    size = len(about.classes)
    told = f"A classifier of {size} classes, {about.blueprint.backbone}, written by longtail "
    told += f"{about.version}. "
    if about.alpha is None:
        return told + "It has no alpha."
    if about.dial:
        return (
            told + f"Alpha is an input, {about.alpha:g} unless it is set. A larger one "
            "takes more of the frequent classes' advantage away, 0 takes nothing."
        )
    return (
        told + f"Alpha {about.alpha:g} is folded into its weights: the total direct effect costs "
        "nothing here, and cannot be turned any more."
    )


def _call(about: About) -> list[str]:
    inputs = "embeddings" if about.blueprint.embeddings else '["a.jpg", "b.png"]'
    return [f"for found in model.predict({inputs}):", "    print(found.name, found.probability)"]


def _normalisation(about: About) -> str:
    mean, std = (
        ", ".join(f"{value:.4g}" for value in values)
        for values in (about.blueprint.mean, about.blueprint.std)
    )
    return f"Inside it computes `(x / 255 - mean) / std` with mean ({mean}) and std ({std})."


def _figures(about: About) -> list[str]:
    metrics = about.metrics
    part = tables.PARTS.get(metrics.get("evaluated_on", ""), "unknown")
    shown = (*tables.SPLITS, *(["class_mean"] if "class_mean" in metrics else []))
    cells = ["-" if metrics.get(name) is None else f"{metrics[name]:.1f}" for name in shown]
    at = ", at the last epoch" if "epochs" in about.training else ""
    at += "" if metrics.get("alpha") is None else f", at alpha {metrics['alpha']:g}"
    lines = [
        tables.markdown([name.replace("_", " ") for name in shown], [cells]),
        f"Accuracy in percent on the {part} part{at}. Many, medium and few are "
        "classes with more than 100, 20 to 100 and fewer than 20 training images.",
    ]
    if about.alpha != metrics.get("alpha"):
        lines.append(f"At the alpha of this file, {about.alpha:g}, it was not measured.")
    return lines


def _training(about: About) -> list[str]:
    training, counts = about.training, about.counts
    how = f"seed {training.get('seed')}, {training.get('epochs')} epochs"
    if "checkpoint" in training:
        how = f"the weights of `{training['checkpoint']}`, trained no further"
    number = training.get("held_out")
    held = f", {number:,} of them held out and not learned from" if number else ""
    facts = [
        f"{sum(counts):,} images of {len(counts)} classes, {max(counts):,} of the most frequent "
        f"and {min(counts):,} of the rarest{held}; {how}; subset SHA-256 "
        f"`{training.get('subset_sha256')}`.",
        *([str(training["verdict"])] if "verdict" in training else []),
    ]
    method = registry().get(str(training.get("method")))
    paper = method().paper if method else None
    if paper:
        address = f"https://arxiv.org/abs/{paper.arxiv}"
        facts.append(f"Method: [{paper.authors} {paper.year}]({address}).")
    return [*facts, "", f"Classes: {', '.join(f'`{name}`' for name in about.classes)}."]
