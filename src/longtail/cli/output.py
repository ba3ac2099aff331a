"""Output of the commands: tables, on rank 0 only."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from longtail.core.errors import UserError
from longtail.core.names import make_text_printable
from longtail.core.notebook import Cell, format_lines


def print_table(results: list[dict[str, Any]]) -> None:
    """Print mean and deviation of each method over its seeds."""
    from longtail.evaluation import tables

    columns = tables.columns(tables.is_uneven(results))
    print_lines([*tables.HEADER, *columns], [row.cells(columns) for row in tables.rows(results)])
    print_part(results)


def print_part(results: Iterable[Mapping[str, Any]]) -> None:
    """Print that results are of the validation part, and of several labels, if any are."""
    found = list(results)
    if is_first_process() and any(result.get("task") == "multi-label" for result in found):
        print("average precision in percent: overall is its mean over the labels (mAP)")
    if is_first_process() and any(result["evaluated_on"] == "val" for result in found):
        print("evaluated on the validation part")


def print_candidates(results: list[dict[str, Any]]) -> None:
    """Print the rules that competed in each run of `auto`, each at its best strength."""
    from longtail.evaluation import tables

    for result in (r for r in results if "rule" in r and "candidates" in r):
        seed = f", seed {result['seed']}" if len(results) > 1 else ""
        if is_first_process():
            show(f"\nrules on held-out data{seed}; chosen: {result['rule']}")
            show("a later rule wins only if it leads by more than the standard error of its lead")
        candidates = result["candidates"]
        best = tables.best_of_each_rule({name: row["nll"] for name, row in candidates.items()})
        chosen = result["rule"]
        # in rounded figures another strength may be level with the chosen one
        rule = tables.name_rule(chosen)
        best = [chosen if tables.name_rule(name) == rule else name for name in best]
        rows = tables.candidate_rows({name: candidates[name] for name in best}, chosen)
        print_lines(tables.CANDIDATE_HEADER, rows)


def print_remarks(results: list[dict[str, Any]]) -> None:
    """Print how an alpha or a strength was chosen in each run, and figures with mirror images.

    A rule that `auto` chose is in the table of its candidates.
    """
    from longtail.evaluation.alpha import explain_choice
    from longtail.evaluation.result import describe_flips

    for result in results:
        fixed = "rule" in result or result["alpha_rule"] in ("fixed", "given")
        remarks = filter(None, ["" if fixed else explain_choice(result), describe_flips(result)])
        if (text := "; ".join(remarks)) and is_first_process():
            show(f"{result['method']}, seed {result['seed']}: {text}")


def show(text: str, **how: Any) -> None:
    """Print a text for people; names in it cannot steer their terminal."""
    print(make_text_printable(text), **how)


def print_lines(header: Sequence[str], lines: Iterable[Sequence[Cell]]) -> None:
    """Print a plain table with aligned columns, on rank 0 only; None as a dash."""
    if not is_first_process():
        return
    show("\n".join(format_lines(header, lines)))


class GrowingTable:
    """A plain table whose rows are printed as they come, on rank 0 only."""

    def __init__(self, header: Sequence[str], widest: Sequence[str]):
        """Print the header; `widest` has the longest text of each of the first columns.

        The other columns hold percentages.
        """
        texts = [*widest, *["100.0"] * (len(header) - len(widest))]
        self._header = [name.ljust(len(text)) for name, text in zip(header, texts, strict=True)]
        print_lines(self._header, [])

    def add(self, row: Sequence[Cell]) -> None:
        """Print a row at once, though it may go into a file."""
        if is_first_process():
            show(format_lines(self._header, [row])[1], flush=True)


def refuse_ranks(command: str) -> None:
    """Raise if several processes were started for a command that needs only one."""
    from longtail.core.config import MachineConfig
    from longtail.data.decoding.host import count_ranks

    if (ranks := count_ranks(MachineConfig())) > 1:
        raise UserError(
            f"{ranks} processes would each do all the work of longtail {command}: start it without "
            "torchrun and srun, as one process"
        )


def is_first_process() -> bool:
    """Return whether this process has rank 0."""
    return rank() == 0


def rank() -> int:
    """Return the rank of this process under torchrun, SLURM or --devices, else 0."""
    for name in ("RANK", "SLURM_PROCID"):
        # a script of sbatch has a SLURM_PROCID too, which the processes of --devices inherit
        if name in os.environ and (name == "RANK" or "SLURM_STEP_NUM_TASKS" in os.environ):
            return int(os.environ[name])
    node, local = (int(os.environ.get(name, 0)) for name in ("NODE_RANK", "LOCAL_RANK"))
    return local if node == 0 else max(1, local)
