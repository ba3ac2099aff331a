"""The normalised heads, with and without the total direct effect (Eqs. 7, 8 and 10).

`X` and `X-tde` share one training and differ in alpha.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from longtail.methods.base import NOT_READ, Auto, CausalReading, Choice, Method, Paper, require
from longtail.nn.heads import CapsuleHead, CosineHead, DeconfoundHead, Head, check_alpha

ALPHAS = tuple(i * 0.25 for i in range(13))
"""Values that `auto` tries: 0 to 3 in steps of 0.25."""
GIDARIS = Paper("Gidaris & Komodakis", 2018, "1804.09458")
LIU = Paper("Liu et al.", 2019, "1904.05160")
TANG = Paper("Tang et al.", 2020, "2009.12991")


def cosine(*, heads: int = 1, tau: float = 16.0) -> Method:
    """Cosine classifier, N = |x||w| (Gidaris & Komodakis 2018; Qi et al. 2018)."""
    reading = CausalReading(deconfounds=True)
    return _build_method(CosineHead, GIDARIS, reading, heads=heads, tau=tau)


def capsule(*, heads: int = 1, tau: float = 16.0) -> Method:
    """Capsule classifier, N = (|x| + 1)|w| (Liu et al. 2019, the classifier of OLTR)."""
    return _build_method(CapsuleHead, LIU, NOT_READ, heads=heads, tau=tau)


def deconfound(*, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32) -> Method:
    """De-confounded training, Eq. 7 (Tang et al. 2020)."""
    require(least=0, gamma=gamma)
    reading = CausalReading(deconfounds=True)
    return _build_method(DeconfoundHead, TANG, reading, heads=heads, tau=tau, gamma=gamma)


def cosine_tde(*, heads: int = 1, tau: float = 16.0, alpha: Auto = 1.0) -> Method:
    """Cosine classifier, then the total direct effect at test time (Tang et al. 2020)."""
    return _add_tde("cosine", cosine(heads=heads, tau=tau), alpha)


def capsule_tde(*, heads: int = 1, tau: float = 16.0, alpha: Auto = 1.0) -> Method:
    """Capsule classifier, then the total direct effect at test time (Tang et al. 2020)."""
    return _add_tde("capsule", capsule(heads=heads, tau=tau), alpha)


def deconfound_tde(
    *, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32, alpha: Auto = 1.0
) -> Method:
    """De-confounded training, then the total direct effect, Eq. 8 (Tang et al. 2020)."""
    return _add_tde("deconfound", deconfound(heads=heads, tau=tau, gamma=gamma), alpha)


def _build_method(
    head: Callable[..., Head], paper: Paper, reading: CausalReading, **options: float
) -> Method:
    require(least=1, heads=options["heads"])
    require(above=0, tau=options["tau"])
    return Method(head=partial(head, alpha=0.0, **options), alpha=0.0, paper=paper, reading=reading)


def _add_tde(name: str, trained: Method, alpha: Auto) -> Method:
    """Remove the indirect effect from the method `trained`, whose name is `name`."""
    return replace(
        trained,
        alpha=None if alpha == "auto" else check_alpha(alpha, or_auto=True),
        choice=Choice("alpha", ALPHAS) if alpha == "auto" else None,
        training=name,
        post_hoc=("alpha",),
        paper=TANG,
        reading=trained.reading._replace(effect="TDE"),
    )
