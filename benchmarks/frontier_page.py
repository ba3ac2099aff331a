"""The page of the frontier recipe: published figures beside ours, and what carries the recipe."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.frontier import read_lines
from benchmarks.result_files import format_spread, write_page
from longtail import methods
from longtail.evaluation import tables

NAME = "frontier"
NOTE = """Class means of the test part, in percent, at the last epoch; mean ± standard deviation
over seeds. TDE, self-prior and logit adjustment have strength 1, fixed beforehand. Only logit
adjustment and `balanced-contrastive` read class counts of the training set; the contrastive loss
divides by the counts within a batch. A rule is not applied to a network whose loss knows the
counts. The raw lines are in [frontier](frontier), the search on held-out data in
[log.md](frontier/log.md)."""
RULES = {
    "as trained": ("as-trained", "0"),
    "TDE": ("tde", "1"),
    "self-prior": ("self-prior", "1"),
    "logit adjustment": ("logit-adjustment", "1"),
}
"""Rule and strength of each column."""
READS_COUNTS = {"as trained": "yes", "TDE": "no", "self-prior": "no", "logit adjustment": "yes"}
"""Whether a figure under the rule rests on class counts; as trained, those of the loss."""
WHOLE = {"whole": "c100-100-dual-200", "longer": "c100-100-dual-400"}
"""Rows of the ablation that are trainings of `final`."""
SEARCHED = "64-400-clipped"
"""The variant of `clipped` that is the recipe, but for contrast and the doubled block."""
NETWORKS = {"resnet32": "ResNet-32", "resnet32-dual": "ResNet-32, last block doubled"}


class Published(NamedTuple):
    """A published figure for CIFAR-100-LT at imbalance 100: one network, no further data."""

    method: str
    accuracy: float
    network: str = NETWORKS["resnet32"]
    epochs: str = "?"
    counts: str = "yes"
    epoch: str = "?"
    """Which epoch was reported: last, best on the test part, or unknown."""


PUBLISHED = (
    Published("De-confound-TDE", 44.1, NETWORKS["resnet32-dual"], "200", counts="no"),
    Published("balanced softmax, AutoAugment, Cutout", 50.3),
    Published("BALMS, AutoAugment, Cutout", 50.8),
    Published("BCL", 51.9, epochs="200"),
    Published("PaCo", 52.0, epochs="400"),
    Published("GBG", 52.3, epochs="200"),
    Published("FeatRecon", 52.5),
    Published("ProCo", 52.8, epochs="200", epoch="last"),
    Published("MKP", 53.2),
    Published("ConCutMix", 53.2, epochs="200"),
    Published("NCL, one network", 53.3, epochs="400"),
    Published("PaCo + SCoRe-FL", 53.7),
    Published("ProCo", 54.2, epochs="400", epoch="last"),
    Published("BCL + OFBD", 54.2),
    Published("MKP + OFBD", 54.4),
    Published("ConCutMix", 55.1, epochs="400", epoch="best"),
)
"""From the papers' tables, repositories and logs; networks as each paper states them."""

Line = Mapping[str, Any]


def write_frontier_page(results: Path) -> Path:
    """Write RESULTS/frontier.md from the lines of `final`, `counted`, `ablation` and `tiny`."""
    final, counted, ablation, tiny = (
        group_by_variant(results, name) for name in ("final", "counted", "ablation", "tiny")
    )
    if ablation:
        ablation = {name: final[own] for name, own in WHOLE.items() if own in final} | ablation
    parts = [NOTE, describe_choice(results)]
    parts += ["## Beside published figures: CIFAR-100-LT, imbalance 100", compare(results)]
    for title, groups in (
        ("The recipe on every set", final),
        ("The recipe with class counts", counted),
        ("One part left out at a time", ablation),
        ("Tiny-ImageNet-LT", tiny),
    ):
        parts += [f"## {title}", list_variants(groups)] if groups else []
    return write_page(results, NAME, parts)


def describe_choice(results: Path) -> str:
    """Return a sentence on the strength of each rule at which held-out images are likeliest."""
    lines = group_by_variant(results, "clipped").get(SEARCHED)
    if not lines:
        return ""
    found = []
    for rule, (name, _) in RULES.items():
        tried = [key for key in lines[0]["rules"][name] if key != "chosen"]
        nll = {key: sum(line["rules"][name][key]["nll"] for line in lines) for key in tried}
        if len(nll) > 1:
            found.append(f"{rule} {min(nll, key=nll.__getitem__)}")
    return (
        "On the held-out part, for the usual network without contrast, the likelihood is best at "
        f"{', '.join(found)}."
    )


def group_by_variant(results: Path, name: str) -> dict[str, list[Line]]:
    """Read the lines of a set of variants, by variant in the order of the names."""
    groups: dict[str, list[Line]] = {}
    for line in read_lines([results / NAME / f"{name}.jsonl"]):
        groups.setdefault(line["variant"], []).append(line)
    return dict(sorted(groups.items()))


def compare(results: Path) -> str:
    """Return a table of published figures and ours, from low to high, ours in bold."""
    rows: list[tuple[float, list[str]]] = []
    for each in PUBLISHED:
        about = [each.method, each.network, each.epochs, each.counts, each.epoch]
        rows.append((each.accuracy, [*about, "", f"{each.accuracy:.1f}"]))
    lines = [
        *group_by_variant(results, "final").values(),
        *group_by_variant(results, "counted").values(),
    ]
    for group in lines:
        first = group[0]
        if first["data"] != "cifar100-lt:100":
            continue
        epochs, network = str(first["train"]["epochs"]), NETWORKS[first["backbone"]]
        for rule, counts in READS_COUNTS.items():
            values = class_means(group, rule)
            if not values or (rule == "as trained") != knows_counts(first):
                continue
            name = first["method"] if rule == "as trained" else f"{first['method']}, {rule}"
            cells = [f"**{name}**", network, epochs, counts, "last", str(len(values))]
            rows.append((statistics.fmean(values), [*cells, f"**{format_spread(values)}**"]))
    rows.sort(key=lambda row: row[0])
    header = ["method", "network", "epochs", "class counts", "epoch", "seeds", "accuracy"]
    return tables.markdown(header, [cells for _, cells in rows])


def list_variants(groups: Mapping[str, Sequence[Line]]) -> str:
    """Return a table of variants under every rule."""
    rows = []
    for variant, group in groups.items():
        figures = [format_spread(class_means(group, rule)) for rule in RULES]
        flipped = format_spread(class_means(group, "self-prior", flips=True))
        first = group[0]
        about = [first["data"], first["backbone"], str(first["train"]["epochs"])]
        rows.append([variant, *about, str(len(group)), *figures, flipped])
    header = ["variant", "data", "network", "epochs", "seeds", *RULES, "self-prior, flips"]
    return tables.markdown(header, rows)


def knows_counts(line: Line) -> bool:
    """Return whether the loss of a training read class counts."""
    return methods.build(line["method"]).needs_counts


def class_means(group: Sequence[Line], rule: str, *, flips: bool = False) -> list[float]:
    """List the class means of `rule` over the seeds; empty if it does not apply."""
    name, strength = RULES[rule]
    if rule != "as trained" and knows_counts(group[0]):
        return []
    found = [line["rules"][name][strength] for line in group if name in line["rules"]]
    return [(each["flips"] if flips else each)["class_mean"] for each in found]
