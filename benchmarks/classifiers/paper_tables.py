"""Tables of classifiers beside the figures of the paper, made from result files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common.result_files import format_spread, read_result, replace_between
from longtail.evaluation import tables
from longtail.evaluation.result import own_seconds

if TYPE_CHECKING:
    from benchmarks.classifiers.bench import ClassifierBench
    from benchmarks.classifiers.recipes import ClassifierRecipe

PAPER_ORDER = (
    *("focal", "mixup", "class-balanced", "ldam-drw", "bbn", "oltr", "decouple-oltr"),
    *("decouple-joint", "decouple-ncm", "decouple-crt", "decouple-tau-norm", "decouple-lws"),
    *("eql", "baseline", "cosine", "capsule", "deconfound"),
    *("cosine-tde", "capsule-tde", "deconfound-tde", "balanced-softmax", "logit-adjustment"),
    *("deconfound-self-prior", "deconfound-balanced", "auto"),
    *("bce", "logit-adjusted-bce", "asymmetric", "distribution-balanced"),
    *("deconfound-bce", "deconfound-bce-tde"),
)
"""Methods in the order of the paper's tables, followed by methods that are not in the paper."""


def body(bench: "ClassifierBench") -> str:
    """Return all tables of a page, followed by the cells where we are below the paper."""
    table = markdown(bench)
    several = len({recipe.config.data for recipe in bench.recipes}) > 1
    subsets = describe_subsets(bench)
    short = f"Overall accuracy, ours / the paper's:\n\n{overview(bench)}\n" if several else ""
    note = f"\n{SHARES}\n" if "seconds a run" in table else ""
    return f"{compare_recipes(bench)}{subsets or short}{table}{note}{_list_losses(bench)}"


def compare_recipes(bench: "ClassifierBench") -> str:
    """Return a table of NAME and NAME-published side by side; empty for any other benchmark.

    It has every row of NAME that is in the paper. The last column is that of the better recipe.
    """
    from benchmarks.classifiers.bench import ClassifierBench

    name, recipes = bench.name.removesuffix("-published"), _find_recipes(bench)
    if name == bench.name or not (recipes / name).is_dir():
        return ""
    folders = {"recipes": recipes, "results": bench.results.parent, "runs": bench.runs.parent}
    shared = ClassifierBench.open(name, **folders)
    own = {(recipe.config.data, _name_row(recipe)): recipe for recipe in bench.recipes}
    lines = []
    for recipe in shared.recipes:
        if recipe.paper is None:
            continue
        other = own.get((recipe.config.data, recipe.config.method))
        found = [shared.read_results(recipe), bench.read_results(other) if other else []]
        spreads = [tables.spread([r["overall"] for r in results]) for results in found]
        means = [spread[0] for spread in spreads if spread]
        apart = f"{round(max(means) - recipe.paper, 1) + 0.0:+.1f}" if means else "-"  # never -0.0
        cells = [
            f"{tables.format_figure(figure)} ({len(results)})" if results else "-"
            for figure, results in zip(spreads, found, strict=True)
        ]
        row = [recipe.config.data, recipe.config.method, *cells]
        lines.append([*row, f"{recipe.paper:.1f}", apart])
    header = ["data", "method", f"recipe of {name} (seeds)", "published recipe (seeds)"]
    table = tables.markdown([*header, "paper", "better - paper"], lines)
    dash = "A dash means that there is no such recipe, or no result of it."
    return f"Overall accuracy under both recipes. {dash}\n\n{table}\n"


def _find_recipes(bench: "ClassifierBench") -> Path:
    """Return the folder of all recipes."""
    parents = bench.recipes[0].path.parents
    return next(folder.parent for folder in parents if folder.name == bench.name)


def _name_row(recipe: "ClassifierRecipe") -> str:
    """Return the paper's row of a recipe; its focal loss is the class-balanced one with beta 0."""
    config = recipe.config
    is_focal = config.method == "class-balanced" and config.options.get("beta") == 0
    return "focal" if is_focal else config.method


def describe_subsets(bench: "ClassifierBench") -> str:
    """Return a table of the spread over subsets of the images; empty for a single subset.

    Beside it is the spread over the seeds of one subset, if a benchmark of that name without
    `-subsets` has results.
    """
    rows: dict[tuple[str, ...], list[ClassifierRecipe]] = {}
    for recipe in bench.recipes:
        config = recipe.config
        if config.files.subset_seed:
            rows.setdefault((config.data, config.backbone, config.method), []).append(recipe)
    lines = []
    for row, recipes in rows.items():
        found = [[r["overall"] for r in bench.read_results(recipe)] for recipe in recipes]
        means = [sum(each) / len(each) for each in found if each]
        paper = recipes[0].paper
        given = "" if paper is None else f"{paper:.1f}"
        seeds = _read_seeds(bench, recipes[0])
        spreads = [str(len(means)), format_spread(means), str(len(seeds)), format_spread(seeds)]
        lines.append([*row, *spreads, given])
    if not lines:
        return ""
    header = ["data", "backbone", "method", "subsets", "over subsets", "seeds", "over seeds"]
    table = tables.markdown([*header, "paper"], lines)
    return f"Overall accuracy, mean and deviation over subsets and over seeds:\n\n{table}\n"


def _read_seeds(bench: "ClassifierBench", recipe: "ClassifierRecipe") -> list[float]:
    """Read the overall accuracies of the seeds of the first subset."""
    folder = bench.results.with_name(bench.name.removesuffix("-subsets")) / recipe.cell
    found = sorted(folder.glob(f"{recipe.config.method}-s[0-9]*.json"))
    return [read_result(path)["overall"] for path in found]


def in_paper_order(recipe: "ClassifierRecipe") -> tuple[Any, ...]:
    """Sort key: data set, most imbalanced first, then methods in the order of the paper."""
    data, _, ratio = recipe.config.data.partition(":")
    return (
        (data, -float(ratio or 0), recipe.config.backbone),
        PAPER_ORDER.index(recipe.config.method)
        if recipe.config.method in PAPER_ORDER
        else len(PAPER_ORDER),
        recipe.name,
    )


COMMIT = "commit"
"""Column of the code that made a row; a table whose rows share it goes without."""


def markdown(bench: "ClassifierBench") -> str:
    """Return the table of a benchmark, made from its result files; missing cells say "not run"."""
    rows = [_cells(recipe, bench.read_results(recipe)) for recipe in bench.recipes]
    # drop empty columns: not every benchmark is in the paper, most test sets are balanced, seconds
    # of a CPU are not shown, and a linear head has no alpha
    columns = [c for c in rows[0] if any(row[c] not in ("", "-") for row in rows)]
    if len({row[COMMIT] for row in rows if row[COMMIT]}) < 2:
        columns = [c for c in columns if c != COMMIT]
    return tables.markdown(columns, ([row[c] for c in columns] for row in rows))


README_ROWS = ("baseline", "ldam-drw", "bbn", "balanced-softmax", "deconfound", "deconfound-tde")
"""Methods in the overview of the README; results/NAME.md has all of them."""


def overview(bench: "ClassifierBench", only: Sequence[str] = ()) -> str:
    """Return a table of overall accuracy, ours / the paper's: methods by data sets.

    `only` limits it to these rows.
    """
    columns = list(dict.fromkeys(recipe.config.data for recipe in bench.recipes))
    cells = {
        (_row(r), r.config.data): _overview_cell(r, bench.read_results(r)) for r in bench.recipes
    }
    rows = sorted({_row(r): in_paper_order(r)[1] for r in bench.recipes}.items(), key=_by_value)
    lines = [
        [row, *(cells.get((row, data), "") for data in columns)]
        for row, _ in rows
        if not only or row in only
    ]
    return tables.markdown(["method", *columns], lines)


def _row(recipe: "ClassifierRecipe") -> str:
    return recipe.name + (" (64-d)" if recipe.config.backbone == "resnet32" else "")


def _by_value(item: tuple[str, int]) -> tuple[int, str]:
    return item[1], item[0]


def _overview_cell(recipe: "ClassifierRecipe", results: Sequence[Mapping[str, Any]]) -> str:
    row = tables.row(results) if results else None
    ours = tables.format_figure(row.figures["overall"]) if row else "not run"
    ours += " (1 seed)" if len(results) == 1 else ""
    paper = "" if recipe.paper is None else f" / {recipe.paper:.1f}"
    return f"[{ours}]({_link(recipe)}){paper}"


def _link(recipe: "ClassifierRecipe") -> str:
    """Path of the recipe relative to the results folder."""
    return str(recipe.path if recipe.path.is_absolute() else Path("..") / recipe.path)


def _cells(recipe: "ClassifierRecipe", results: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return one row as column name to text; the text is empty if there is no value."""
    config, paper = recipe.config, recipe.paper
    row = tables.row(results) if results else None
    overall = row.figures["overall"] if row else None
    class_mean = row.figures[tables.CLASS_MEAN] if row and tables.is_uneven(results) else None
    several = [r for r in results if "task" in r]
    timed = [] if any(r.get("shared_device") for r in results) else results
    on_gpu = [r for r in timed if "CPU" not in r["device"]]
    seconds = [own_seconds(r) / r.get("shards", 1) for r in on_gpu]
    return {
        "data": config.data,
        "backbone": config.backbone,
        "method": f"[{recipe.name}]({_link(recipe)})",
        "alpha": row.alpha if row else "",
        "seeds": str(len(results)),
        "overall": tables.format_figure(overall) if overall else "not run",
        "paper": "" if paper is None else f"{paper:.1f}",
        "difference": f"{overall[0] - paper:+.1f}" if overall and paper is not None else "",
        **{split: _split_cell(recipe, row, split) for split in ("many", "medium", "few")},
        tables.CLASS_MEAN: tables.format_figure(class_mean) if class_mean else "",
        "F1": tables.format_figure(tables.spread([r["macro"]["f1"] for r in several])),
        "seconds a run": tables.format_figure(tables.spread(seconds)) if seconds else "",
        COMMIT: ", ".join(sorted({r["git"] or "unknown" for r in results})),
    }


def _split_cell(recipe: "ClassifierRecipe", row: tables.Row | None, split: str) -> str:
    """Return the accuracy on a split, and after a slash the paper's, if it is known."""
    ours = tables.format_figure(row.figures[split]) if row else ""
    paper = recipe.paper_splits.get(split)
    return ours if paper is None else f"{ours} / {paper:.1f}".lstrip()


BELOW = 1.3
"""Cells that are more points below the paper are listed. It was fixed before any run."""
SHARES = """Several trainings share the device. The seconds of a run are its share by number of
images, so do not compare rows by them: `python -m benchmarks prices` measures methods one at a
time. Where several processes shared the device, the seconds are too low for those that trained
on while others had ended. Where several commands did, no seconds are shown; in older rows, which
do not record it, they are too high."""


def _list_losses(bench: "ClassifierBench") -> str:
    """List the cells where we are below the paper, if there are any."""
    lost = []
    for recipe in bench.recipes:
        results = bench.read_results(recipe)
        overall = tables.row(results).figures["overall"] if results else None
        if overall and recipe.paper is not None and overall[0] < recipe.paper - BELOW:
            apart = overall[0] - recipe.paper
            lost.append(f"- {recipe.name} on {recipe.config.data}: {apart:+.1f}\n")
    return f"\nMore than {BELOW} points below the paper:\n\n{''.join(lost)}" if lost else ""


def write_table(bench: "ClassifierBench", readme: Path | None) -> Path:
    """Write RESULTS/NAME.md, and its table or overview between the README's markers for NAME."""
    table = markdown(bench)
    one_set = len({r.config.data for r in bench.recipes}) == 1
    short = table if one_set else overview(bench, README_ROWS)
    out = bench.write_page()
    if readme and readme.exists():
        replace_between(readme, bench.name, short.replace("(../recipes", "(recipes"))
    return out
