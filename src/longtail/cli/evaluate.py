"""`longtail eval`: evaluate a finished run."""

import json
from dataclasses import dataclass

from longtail.cli.arguments import MovedData, RunFolder, parse_number
from longtail.cli.output import print_table


@dataclass(frozen=True)
class Eval:
    """Evaluate a finished run, at its own alpha or at another."""

    folder: RunFolder
    alpha: str | None = None
    """A number, or auto: the run's own choice, else one made on its held-out data, else one made
    without labels. By default the run's own alpha."""
    data: MovedData = None
    json: bool = False
    """Print the whole result as JSON."""

    examples = """
      longtail eval runs/demo/deconfound-tde/s0
      longtail eval runs/demo/deconfound-tde/s0 --alpha 0.5 --json"""

    def run(self) -> None:
        """Print a table or JSON."""
        from longtail.evaluation.alpha import RULES, describe_choice
        from longtail.runs.reopen import evaluate

        alpha = self.alpha if self.alpha in (None, "auto") else parse_number("--alpha", self.alpha)
        result = evaluate(self.folder, alpha, data=self.data).to_json()  # type: ignore[arg-type]
        if self.json:
            print(json.dumps(result))
        else:
            print_table([result])
            if result["alpha_rule"]:
                option, value, rule = describe_choice(result)
                how = "as given" if isinstance(alpha, float) else RULES[rule]
                print(f"{option} {value}, {how}")
