"""One training, after which post-hoc rules compete on held-out data."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from longtail.core.errors import UserError, unknown_error
from longtail.methods.base import Choice, Method, Rule
from longtail.methods.deconfound import ALPHAS, deconfound
from longtail.methods.decouple import use_class_means
from longtail.methods.logit_adjustment import balanced_softmax, deconfound_balanced, subtract_prior
from longtail.methods.self_prior import STRENGTHS, subtract_self_prior
from longtail.nn.heads import check_alpha

RULES: dict[str, Callable[[float], Rule]] = {
    "self-prior": lambda strength: partial(subtract_self_prior, strength=strength),
    "logit-adjustment": lambda strength: partial(subtract_prior, tau=strength),
}
"""Rules with a strength, which replace the head."""
CANDIDATES = (
    *(f"self-prior:{strength:g}" for strength in STRENGTHS[1:]),
    *(f"tde:{alpha:g}" for alpha in ALPHAS[1:]),
    *(f"logit-adjustment:{strength:g}" for strength in STRENGTHS[1:]),
    *("nearest-mean", "as-trained"),
)
"""Rules that compete, each with its strength; a later rule must clearly lead."""
RIVALS = ("deconfound-balanced", "balanced-softmax")
"""Methods with a training of their own that compete too if `thorough`."""


def auto(
    *,
    heads: int = 2,
    tau: float = 16.0,
    gamma: float = 1 / 32,
    rule: str = "auto",
    thorough: bool = False,
) -> Method:
    """De-confounded training; then held-out data chooses the post-hoc rule and its strength."""
    post_hoc = ("rule", "thorough")
    if rule == "balanced-softmax":
        return replace(balanced_softmax(), training=rule, post_hoc=post_hoc)
    if rule == "deconfound-balanced":
        rival = deconfound_balanced(heads=heads, tau=tau, gamma=gamma)
        return replace(rival, training=rule, post_hoc=post_hoc)
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    shared = replace(trained, training="deconfound", post_hoc=post_hoc)
    if rule in ("auto", "tde", *RULES):
        names = [name for name in CANDIDATES if rule in ("auto", name.partition(":")[0])]
        default = "self-prior:1" if rule == "auto" else f"{rule}:1"
        rivals = RIVALS if thorough else ()
        choice = Choice("rule", tuple(names), default=default, least_images=2, rivals=rivals)
        return replace(shared, alpha=None, choice=choice, weighs_counts=True)
    name, _, text = rule.partition(":")
    if rule == "as-trained":
        return shared
    if rule == "nearest-mean":
        return replace(shared, rule=use_class_means)
    if name not in ("tde", *RULES):
        known = "tde, self-prior or logit-adjustment, alone or with a strength as in --rule tde:1"
        names = [*CANDIDATES, *RIVALS]
        raise unknown_error("--rule", rule, names, f"{known}; nearest-mean; as-trained")
    try:
        strength = check_alpha(float(text))
    except ValueError:  # also what `check_alpha` raises
        raise UserError(f"--rule {rule} needs a number from 0 up, as in --rule {name}:1") from None
    if name == "tde":
        return replace(shared, alpha=strength)
    counts = name == "logit-adjustment"
    return replace(shared, rule=RULES[name](strength), weighs_counts=counts)
