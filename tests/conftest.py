"""What every test shares: no hub, threads that sleep rather than spin, hypothesis profiles."""

import os

from hypothesis import HealthCheck, settings

from workers.models.openmp import bound_spinning

os.environ["HF_HUB_OFFLINE"] = "1"
bound_spinning()
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("default", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=5_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
