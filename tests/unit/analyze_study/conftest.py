"""The study of `tests/support/made_study.py`; the store of `tests/support/small_models.py`."""

from made_study import make_study
from small_models import environment
