"""Settings of tests that Hypothesis draws examples for: the same ones on every machine."""

from hypothesis import HealthCheck, settings

quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],  # which looks at the clock
)
