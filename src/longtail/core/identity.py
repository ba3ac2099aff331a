"""The two ids of a training: that of its recipe, and its own.

`recipe_id` is a hash of the configuration, the data and the number of ranks: runs that have it in
common can share a training. `training_id` is drawn when a training starts: results that have it in
common come from the same training.
"""

import uuid
from collections.abc import Mapping
from typing import Any


def draw_training_id() -> str:
    """Draw an id that no other training has, whatever its seed."""
    return uuid.uuid4().hex[:16]


def read_ids(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored result with its ids under their present names.

    Older versions stored the hash of the recipe as `training_id`; their trainings have no id.
    """
    if "recipe_id" in result or "training_id" not in result:
        return dict(result)
    return {"recipe_id" if key == "training_id" else key: value for key, value in result.items()}
