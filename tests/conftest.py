"""What holds for every test. The gate tries the same examples each time; `--hypothesis-profile=explore` new ones."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("gate")
