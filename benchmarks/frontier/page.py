"""The page of the frontier recipe: published figures beside ours, and what carries the recipe."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.result_files import format_spread, read_lines, write_page
from longtail import methods
from longtail.evaluation import tables

NAME = "frontier"
NOTE = """Class means of the test part, in percent, at the last epoch; mean ± standard deviation
over seeds. TDE, self-prior and logit adjustment have strength 1, fixed beforehand. Only logit
adjustment and `balanced-contrastive` read class counts of the training set; the contrastive loss
divides by the counts within a batch. A rule is not applied to a network whose loss knows the
counts. Flips are the mean logits of an image and its mirror image, under the self-prior, or as
trained if the loss knows the counts. The raw lines are in [frontier](frontier), the search on
held-out data in [frontier-search.md](frontier-search.md)."""
RULES = {
    "as trained": ("as-trained", "0"),
    "TDE": ("tde", "1"),
    "self-prior": ("self-prior", "1"),
    "logit adjustment": ("logit-adjustment", "1"),
}
"""Rule and strength of each column."""
READS_COUNTS = {"as trained": "yes", "TDE": "no", "self-prior": "no", "logit adjustment": "yes"}
"""Whether a figure under the rule rests on class counts; as trained, those of the loss."""
ABLATION = {
    "c100-100-dual-200": "whole",
    "c100-100-dual-400": "400 epochs",
    "without-autoaugment": "without AutoAugment",
    "without-cutmix": "without CutMix",
    "without-contrast": "without contrast",
    "without-either": "without CutMix and contrast",
    "cosine-head": "cosine head: one group, gamma 0",
    "linear-head": "linear head, without contrast",
}
"""Rows of the ablation by variant; the first two are trainings of `final`."""
NETWORKS = {"resnet32": "ResNet-32", "resnet32-dual": "ResNet-32, last block doubled"}


SETS = tuple(f"{name}-lt:{ratio}" for name in ("cifar100", "cifar10") for ratio in (100, 50, 10))
UNKNOWN = (None, None, None)


def list_figures(
    cifar100: Sequence[float | None], cifar10: Sequence[float | None] = UNKNOWN
) -> dict[str, float]:
    """Name the figures at imbalance 100, 50 and 10 by their data set; None is unknown."""
    pairs = zip(SETS, (*cifar100, *cifar10), strict=True)
    return {data: figure for data, figure in pairs if figure is not None}


OWN, OTHERS = "its repository", "other papers"


class Published(NamedTuple):
    """Published figures of a method: one network, no further data."""

    method: str
    figures: Mapping[str, float]
    """Accuracy in percent by data set."""
    network: str = NETWORKS["resnet32"]
    epochs: str = "?"
    counts: str = "yes"
    epoch: str = "?"
    """Which epoch was reported: last, best on the test part, or unknown."""
    read_in: str = OTHERS
    """Where we read the figures."""


PUBLISHED = (
    Published(
        "De-confound-TDE",
        list_figures((44.1, 50.3, 59.6), (80.6, 83.6, 88.5)),
        NETWORKS["resnet32-dual"],
        "200",
        counts="no",
        epoch="best",
        read_in="the paper",
    ),
    Published(
        "MiSLAS",
        list_figures((47.0, 52.3, 63.2), (82.5, 85.7, 90.0)),
        epochs="200 + 10",
        read_in=OWN,
    ),
    Published(
        "balanced softmax, AutoAugment, Cutout",
        list_figures((50.3, None, 63.1), (83.1, None, 90.9)),
        read_in="a leaderboard",
    ),
    Published(
        "BALMS, AutoAugment, Cutout",
        list_figures((50.8, None, 63.0), (84.9, None, 91.3)),
        read_in="a leaderboard",
    ),
    Published(
        "LTC-Net", list_figures((50.8, 54.8, 63.5), (84.4, 86.7, None)), counts="?", read_in=OWN
    ),
    Published("BCL", list_figures((51.9, 56.6, 64.9), (84.3, 87.2, 91.1)), epochs="200"),
    Published("PaCo", list_figures((52.0, 56.0, 64.2), (85.1, 87.1, 90.8)), epochs="400"),
    Published("GBG", list_figures((52.3, 57.2, 64.3), (85.1, 87.6, 91.2)), epochs="200"),
    Published("FeatRecon", list_figures((52.5, 57.0, 65.3)), counts="?"),
    Published(
        "ProCo",
        list_figures((52.8, 57.1, 65.5), (85.9, 88.2, 91.9)),
        epochs="200",
        epoch="last",
        read_in=OWN,
    ),
    Published("MKP", list_figures((53.2, 57.6, 68.7), (86.3, 88.3, 92.5))),
    Published("ConCutMix", list_figures((53.2, None, None)), epochs="200", read_in="?"),
    Published("NCL, one network", list_figures((53.3, None, None)), epochs="400", read_in=OWN),
    Published("PaCo + SCoRe-FL", list_figures((53.7, 56.8, 65.1), (85.6, 87.5, 91.8))),
    Published("ProCo", list_figures((54.2, None, None)), epochs="400", epoch="last", read_in=OWN),
    Published("BCL + OFBD", list_figures((54.2, 57.9, 64.9), (86.3, 88.1, 91.6))),
    Published("GBG + OFBD", list_figures((54.2, 58.4, 65.0), (86.6, 88.3, 91.6))),
    Published("MKP + OFBD", list_figures((54.4, 58.4, 68.1), (86.8, 88.4, 92.0))),
    Published(
        "ConCutMix", list_figures((55.1, None, None)), epochs="400", epoch="best", read_in="?"
    ),
)
"""Figures of other papers are those of tables that compare with the method. Networks are what each
paper states."""
ENSEMBLE, WIDE = "ensemble of ResNet-32", "ResNet-32, four times as wide"
LARGER = (
    Published("SHIKE", list_figures((56.3, None, None)), ENSEMBLE),
    Published("GUIDE", list_figures((56.4, 60.3, 69.2)), ENSEMBLE),
    Published("TCL", list_figures((58.7, None, None)), ENSEMBLE),
    Published(
        "DeiT-LT", list_figures((55.6, 60.5, None), (87.5, 89.8, None)), "ViT-B", read_in=OWN
    ),
    Published("GLMC", list_figures((58.0, 63.8, 73.4), (88.5, 91.0, 94.9)), WIDE, read_in=OWN),
    Published("GLMC + SCoRe-FL", list_figures((61.3, 64.9, 73.8), (92.3, 93.9, 94.9)), WIDE),
)
"""Published figures of ensembles and larger networks."""

Line = Mapping[str, Any]


def write_frontier_page(results: Path) -> Path:
    """Write RESULTS/frontier.md from the lines of `final`, `counted`, `ablation` and `tiny`."""
    final, counted, tiny = (
        group_by_variant(results, name) for name in ("final", "counted", "tiny")
    )
    parts = [NOTE]
    for data in list_sets(results):
        parts += [f"## Beside published figures: {data}", compare(results, data)]
    parts += ["## Published figures of ensembles and larger networks", list_larger()]
    for title, groups in (
        ("The recipe on every set", final),
        ("The recipe with class counts", counted),
        ("Tiny-ImageNet-LT", tiny),
    ):
        parts += [f"## {title}", list_variants(groups)] if groups else []
    if table := ablate(results):
        parts += ["## One part left out at a time", table]
    return write_page(results, NAME, parts)


def group_by_variant(results: Path, name: str) -> dict[str, list[Line]]:
    """Read the lines of a set of variants, by variant in the order of the names."""
    groups: dict[str, list[Line]] = {}
    for line in read_lines(results / NAME / f"{name}.jsonl"):
        groups.setdefault(line["variant"], []).append(line)
    return dict(sorted(groups.items()))


def list_ours(results: Path) -> list[list[Line]]:
    """List our trainings that stand beside published figures, by variant."""
    return [
        group for name in ("final", "counted") for group in group_by_variant(results, name).values()
    ]


def list_sets(results: Path) -> list[str]:
    """List the data sets of our trainings, in the order of the publications' tables."""
    ours = {group[0]["data"] for group in list_ours(results)}
    return [data for data in SETS if data in ours]


def compare(results: Path, data: str) -> str:
    """Return a table of published figures on `data` and ours, from low to high, ours in bold."""
    rows: list[tuple[float, list[str]]] = []
    for each in PUBLISHED:
        if data in each.figures:
            about = [each.method, each.network, each.epochs, each.counts, each.epoch, each.read_in]
            rows.append((each.figures[data], [*about, "", f"{each.figures[data]:.1f}"]))
    for group in list_ours(results):
        first = group[0]
        if first["data"] != data:
            continue
        epochs, network = str(first["train"]["epochs"]), name_network(first)
        for rule, counts in READS_COUNTS.items():
            values = class_means(group, rule)
            if not values or (rule == "as trained") != knows_counts(first):
                continue
            name = first["method"] if rule == "as trained" else f"{first['method']}, {rule}"
            cells = [f"**{name}**", network, epochs, counts, "last", "here", str(len(values))]
            rows.append((statistics.fmean(values), [*cells, f"**{format_spread(values)}**"]))
    rows.sort(key=lambda row: row[0])
    header = [
        "method",
        "network",
        "epochs",
        "class counts",
        "epoch",
        "read in",
        "seeds",
        "accuracy",
    ]
    return tables.markdown(header, [cells for _, cells in rows])


def list_larger() -> str:
    """Return a table of the published figures of ensembles and larger networks."""
    rows = [
        [each.method, each.network, each.read_in]
        + [f"{each.figures[data]:.1f}" if data in each.figures else "" for data in SETS]
        for each in LARGER
    ]
    return tables.markdown(["method", "network", "read in", *SETS], rows)


def ablate(results: Path) -> str:
    """Return a table of the whole recipe and of each part left out; empty without trainings."""
    groups = group_by_variant(results, "ablation")
    if not groups:
        return ""
    groups |= group_by_variant(results, "final")
    rows = [
        [title, str(len(groups[name])), *_format_rules(groups[name])]
        for name, title in ABLATION.items()
        if name in groups
    ]
    return tables.markdown(["part", "seeds", *RULES, "flips"], rows)


def list_variants(groups: Mapping[str, Sequence[Line]]) -> str:
    """Return a table of variants under every rule."""
    rows = []
    for variant, group in groups.items():
        first = group[0]
        about = [first["data"], first["backbone"], str(first["train"]["epochs"])]
        rows.append([variant, *about, str(len(group)), *_format_rules(group)])
    header = ["variant", "data", "network", "epochs", "seeds", *RULES, "flips"]
    return tables.markdown(header, rows)


def _format_rules(group: Sequence[Line]) -> list[str]:
    """Format the figures under each rule, and those with mirror images."""
    mirrored = "as trained" if knows_counts(group[0]) else "self-prior"
    figures = [class_means(group, rule) for rule in RULES]
    return [*map(format_spread, figures), format_spread(class_means(group, mirrored, flips=True))]


def name_network(line: Line) -> str:
    """Return what publications call the network of a line."""
    backbone: str = line["backbone"]
    return NETWORKS.get(backbone, backbone)


def knows_counts(line: Line) -> bool:
    """Return whether a training read class counts, in its loss or to draw donors of CutMix."""
    # a method that is no longer there, deconfound-proco, read none
    known = line["method"] in methods.registry()
    counting = known and methods.build(line["method"]).needs_counts
    return counting or line["train"].get("donors") == "class"


def class_means(group: Sequence[Line], rule: str, *, flips: bool = False) -> list[float]:
    """List the class means of `rule` over the seeds; empty if it does not apply."""
    name, strength = RULES[rule]
    if rule != "as trained" and knows_counts(group[0]):
        return []
    found = [line["rules"][name][strength] for line in group if name in line["rules"]]
    return [(each["flips"] if flips else each)["class_mean"] for each in found]
