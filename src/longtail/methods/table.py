"""The table of methods for the terminal and the docs, generated from the methods."""

from pathlib import Path

from longtail.methods import build, describe, list_names, options_of, read_meanings, registry

HEADER = (
    *("method", "paper", "stages", "needs counts", "changes"),
    *("re-balancing", "de-confound", "direct effect"),
)
INTRODUCTION = """# Methods

Train with `longtail train DATA --method NAME`, with several methods as `NAME,NAME`, or with `all`.
This page is generated from the code of the methods: `longtail methods --out docs/methods.md`.

- **paper**: the one that introduced the method. `auto`, the methods with `self-prior`, and all
  that begin with `deconfound-`, except `deconfound-tde`, are our own; theirs is the paper that they
  build on.
- **stages**: epochs of each stage, as fractions of `--epochs`.
- **needs counts**: whether the loss, the sampler or the rule uses the number of training images of
  each class.
- **changes**: what differs from the baseline. Methods that change only inference share the
  baseline's training.
- **re-balancing, de-confound, direct effect**: how Table 1 of Tang et al. 2020 classifies the
  method: *do(D)*, *do(X)*, and CDE, NDE or TDE. A method that it does not list has what the method
  has that it builds on, or a dash.
"""
ATTENTION = (
    "It attends to the last feature map of a convolutional network, our own or timm's, and refuses "
    "other networks. Embeddings, and a network under `--freeze`, go without attention."
)
SELF_PRIOR = "factor of the log of the network's own mean softmax, subtracted at test time"
MEANINGS = {
    "alpha": "how much of the indirect effect to remove at test time; 0 removes nothing",
    "attract": "weight of the centroid loss",
    "baseline bias": "give the classifier a bias",
    "beta": "a class of n images weighs (1 - beta) / (1 - beta^n)",
    "centre": "ratio r at which a label has half of the weight that varies",
    "classify": "weight of the loss of the head",
    "concentration": "c of Beta(c, c), from which the weights of the mixture are drawn",
    "contrast": "weight of the contrastive loss",
    "defer": "fraction of the epochs before re-weighting starts",
    "gamma": "added to the norm of each class weight",
    "class-balanced gamma": "power by which easy images lose weight; 0 weighs all alike",
    "focal gamma": "power by which easy images lose weight; 0 weighs all alike",
    "gamma_neg": "power by which easy absent labels lose weight",
    "gamma_pos": "power by which easy present labels lose weight",
    "rule": "a rule such as tde:1 or self-prior:1, or one whose strength is chosen, such as tde",
    "thorough": "also train deconfound-balanced and balanced-softmax, which compete as well",
    "heads": "number of heads; must divide the size of a feature",
    "ignore": "probability that a rare class is left out of the loss of another class's image",
    "kappa": "factor of the log prior odds that shift the logits in training",
    "lift": "least weight of a label",
    "margin": "margin of the rarest class, in units of the cosine",
    "asymmetric margin": "probability below which an absent label counts nothing",
    "oltr margin": "mean squared distance to the other centroids below which they repel",
    "repel": "weight of the repelling part of the centroid loss",
    "reach": "factor of an embedding at distance 1 from the nearest centroid",
    "scale": "scale of the logits",
    "distribution-balanced scale": "scale of the logits of absent labels",
    "slope": "how fast the weight of a label grows with its ratio r",
    "softmax": "use softmax cross-entropy, which has no gamma, instead of the sigmoid focal loss",
    "share": "epochs of the second stage, as a fraction of --epochs",
    "strength": "factor of log n in the loss; 0 is cross-entropy",
    "baseline-self-prior strength": SELF_PRIOR,
    "deconfound-self-prior strength": SELF_PRIOR,
    "deconfound-contrastive-self-prior strength": SELF_PRIOR,
    "tau": "scale of the logits",
    "decouple-tau-norm tau": "power of the norm that each class weight is divided by",
    "logit-adjusted-bce tau": "factor of the log prior odds that are added in training",
    "logit-adjustment tau": "factor of the log prior that is subtracted from the logits",
    "temperature": "divides the similarities of the contrastive loss",
    "threshold": "classes with less than this fraction of an equal share of images are rare",
}
"""Short meanings of options, or of a method's option where it differs.

Those of a method's own docstring take precedence.
"""


def describe_options(name: str) -> list[tuple[str, str, str]]:
    """Return flag, default and short meaning of each option of the method called `name`."""
    rows, own = [], read_meanings(name)
    for option in options_of(name).values():
        value = option.default
        default = f"{value:.6g}" if isinstance(value, float) else str(value)
        if "auto" in str(option.annotation):
            default += " or a number" if value == "auto" else " or auto"
        known = MEANINGS.get(f"{name} {option.name}") or MEANINGS.get(option.name, "")
        meaning = own.get(option.name, known)
        rows.append((f"--{option.name.replace('_', '-')}", default, meaning))
    return rows


def describe_several() -> str:
    """Name the methods for images with several labels each."""
    names = ", ".join(list_names(multi_label=True))
    return f"for several labels per image: {names}; all others are for one label per image"


def by_year() -> list[str]:
    """Return the names of all methods by year of publication; those without a paper come first."""
    papers = {name: build(name).paper for name in registry()}
    return sorted(papers, key=lambda name: (getattr(papers[name], "year", 0), name))


def row(name: str) -> list[str]:
    """Return the cells of a method under `HEADER`."""
    method = build(name)
    paper, reading = method.paper, method.reading
    return [
        name,
        f"{paper.authors} {paper.year}" if paper else "-",
        " + ".join(f"{stage.share:.2g}" for stage in method.stages),
        _format_flag(method.needs_counts),
        " and ".join(method.changes) or "-",
        _format_flag(reading.rebalances),
        _format_flag(reading.deconfounds),
        reading.effect or "-",
    ]


def markdown() -> str:
    """Return the page for the docs: the table, then a section for each method with its options."""
    table, sections = [HEADER, ("---",) * len(HEADER)], []
    for name in by_year():
        method, (_, paper, *rest) = build(name), row(name)
        if method.paper:
            paper = f"[{paper}](https://arxiv.org/abs/{method.paper.arxiv})"
        table.append((f"[{name}](#{name})", paper, *rest))
        sections += ["", f"## {name}", "", describe(name)]
        if options := describe_options(name):
            listed = [f"- `{flag}` {default}: {meaning}" for flag, default, meaning in options]
            sections += ["", *(line.removesuffix(": ") for line in listed)]
        if method.backbone:
            sections += ["", f"It requires the backbone `{method.backbone}`."]
        if method.attention:
            sections += ["", ATTENTION]
        if method.departures:
            sections += ["", " ".join(("Departs from its authors:", *method.departures))]
    several = describe_several()
    introduction = f"{INTRODUCTION}\n{several[0].upper()}{several[1:]}.\n"
    lines = [introduction, *(f"| {' | '.join(cells)} |" for cells in table), *sections]
    return "\n".join(lines) + "\n"


def write(path: Path) -> Path:
    """Write the page to `path` and return `path`."""
    path.write_text(markdown(), encoding="utf-8")
    return path


def _format_flag(yes: bool) -> str:
    return "yes" if yes else "-"
