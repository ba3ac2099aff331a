"""How each file of a run can be repaired if it is damaged or missing."""

from pathlib import Path

from longtail.runs.checkpoint import LAST, PREVIOUS, list_checkpoints

COPY = "Copy it again from where the run was trained"


def explain_repair(path: Path, command: str = "training") -> str:
    """Explain how to repair a damaged or missing file of a run that `command` made."""
    again = f"the same {command} command with --resume"
    folder, name = path.parent, path.name
    delete = ", or delete it, and" if path.exists() else ": without it,"
    if name == "config.yaml":
        return f"Restore it, or train the run again: {again.replace('--resume', '--overwrite')}"
    if name == "env.json":
        return f"{COPY}{delete} nothing but the record of the machine and the versions is lost"
    if name == "metrics.jsonl":
        return f"{COPY}{delete} nothing but the curve of the loss is lost"
    if name == PREVIOUS:
        return f"Delete it: {LAST} is enough as long as it is sound"
    if name == LAST:
        start = PREVIOUS if (folder / PREVIOUS).exists() else "the first epoch"
        return f"{COPY}{delete} {again} starts from {start}"
    return f"{COPY}, or {explain_evaluation(folder, command)}"


def explain_evaluation(folder: Path, command: str) -> str:
    """Explain how a file that an evaluation writes is written again."""
    again = f"the same {command} command with --resume"
    if not list_checkpoints(folder):
        return f"train the run again: {again.replace('--resume', '--overwrite')}"
    first = f"delete {folder}/result.json, and " if (folder / "result.json").exists() else ""
    return f"{first}{again} evaluates the run again without training it"
