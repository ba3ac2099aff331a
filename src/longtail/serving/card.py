"""Model cards: Markdown that describes an exported model."""

from longtail.evaluation import tables
from longtail.methods import registry
from longtail.serving.model import ModelDescription


def render_card(about: ModelDescription, name: str) -> str:
    """Return the card of the model in the file or folder called `name`."""
    return "\n".join(
        [
            *_front_matter(about),
            f"# {_title(about)}",
            "",
            _summarise(about),
            "",
            "```python",
            "import longtail as lt",
            "",
            f'model = lt.load_model("{name}")',
            *_call_example(about),
            "```",
            "",
            f"Input: {about.preprocessing}.",
            *(["", _normalisation(about)] if not about.blueprint.embeddings else []),
            "Output: logits `(batch, classes)`; `predict` returns their softmax.",
            "",
            "## Figures",
            "",
            *_accuracy_lines(about),
            "",
            "## Training",
            "",
            *_training_lines(about),
            "",
        ]
    )


def _front_matter(about: ModelDescription) -> list[str]:
    """Return the metadata that model hubs index."""
    kind = "tabular-classification" if about.blueprint.embeddings else "image-classification"
    return ["---", "library_name: longtail", f"pipeline_tag: {kind}", "tags:", "- long-tail", "---"]


def _title(about: ModelDescription) -> str:
    return f"{about.training.get('method', 'model')} on {_data(about)}"


def _data(about: ModelDescription) -> str:
    return tables.data_name({"data": "unnamed data", "ratio": None, **about.training})


def _summarise(about: ModelDescription) -> str:
    size = len(about.classes)
    summary = f"A classifier of {size} classes, {about.blueprint.backbone}, written by longtail "
    summary += f"{about.version}. "
    if about.alpha is None:
        return summary + "It has no alpha."
    if about.dial:
        return (
            summary + f"Alpha is an input, {about.alpha:g} by default. A larger alpha removes more "
            "of the frequent classes' advantage, 0 removes none."
        )
    return (
        summary + f"Alpha {about.alpha:g} is folded into its weights: the total direct effect adds "
        "no cost, and alpha is fixed."
    )


def _call_example(about: ModelDescription) -> list[str]:
    inputs = "embeddings" if about.blueprint.embeddings else '["a.jpg", "b.png"]'
    return [f"for found in model.predict({inputs}):", "    print(found.name, found.probability)"]


def _normalisation(about: ModelDescription) -> str:
    mean, std = (
        ", ".join(f"{value:.4g}" for value in values)
        for values in (about.blueprint.mean, about.blueprint.std)
    )
    return f"The model computes `(x / 255 - mean) / std` with mean ({mean}) and std ({std})."


def _accuracy_lines(about: ModelDescription) -> list[str]:
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
        lines.append(f"It was not evaluated at the alpha of this file, {about.alpha:g}.")
    return lines


def _training_lines(about: ModelDescription) -> list[str]:
    training, counts = about.training, about.counts
    how = f"seed {training.get('seed')}, {training.get('epochs')} epochs"
    if "checkpoint" in training:
        how = f"the weights of `{training['checkpoint']}`, without further training"
    number = training.get("held_out")
    held = f", {number:,} of them held out from training" if number else ""
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
