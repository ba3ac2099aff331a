"""The normalised heads, with and without the total direct effect (Eqs. 7, 8 and 10).

`X` and `X-tde` are one training and two alphas.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

from longtail.heads import CapsuleHead, CosineHead, DeconfoundHead, Head
from longtail.methods.base import Method

Alpha = float | Literal["auto"]


def cosine(*, heads: int = 1, tau: float = 16.0) -> Method:
    """Cosine classifier, N = |x||w| (Gidaris & Komodakis 2018; Qi et al. 2018)."""
    return _total(CosineHead, heads=heads, tau=tau)


def capsule(*, heads: int = 1, tau: float = 16.0) -> Method:
    """Capsule classifier, N = (|x| + 1)|w| (Liu et al. 2019, the classifier of OLTR)."""
    return _total(CapsuleHead, heads=heads, tau=tau)


def deconfound(*, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32) -> Method:
    """De-confounded training, Eq. 7 (Tang et al. 2020)."""
    return _total(DeconfoundHead, heads=heads, tau=tau, gamma=gamma)


def cosine_tde(*, heads: int = 1, tau: float = 16.0, alpha: Alpha = 1.5) -> Method:
    """Cosine classifier, then the total direct effect at test time (Tang et al. 2020)."""
    return replace(cosine(heads=heads, tau=tau), alpha=alpha, training="cosine")


def capsule_tde(*, heads: int = 1, tau: float = 16.0, alpha: Alpha = 1.5) -> Method:
    """Capsule classifier, then the total direct effect at test time (Tang et al. 2020)."""
    return replace(capsule(heads=heads, tau=tau), alpha=alpha, training="capsule")


def deconfound_tde(
    *, heads: int = 2, tau: float = 16.0, gamma: float = 1 / 32, alpha: Alpha = 1.5
) -> Method:
    """De-confounded training, then the total direct effect, Eq. 8 (Tang et al. 2020)."""
    trained = deconfound(heads=heads, tau=tau, gamma=gamma)
    return replace(trained, alpha=alpha, training="deconfound")


def _total(head: Callable[..., Head], **options: float) -> Method:
    return Method(head=partial(head, alpha=0.0, **options), alpha=0.0)
