"""The recipes of lvis-test, which only the server of LVIS can evaluate."""

from typing import TYPE_CHECKING

from longtail.core.errors import UserError

if TYPE_CHECKING:
    from benchmarks.command import BenchCommand


def run_command(command: "BenchCommand") -> None:
    """Raise, with the commands that make the file for the server."""
    raise UserError(
        "lvis-test is evaluated by the LVIS server, which has the annotations: train with "
        f"longtail detect train --recipe {command.recipes}/lvis-test/..., then write the file for "
        "the server with longtail detect predict RUN --lvis-json FILE --annotations "
        "lvis_v0.5_image_info_test.json"
    )
