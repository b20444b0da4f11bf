"""Stand-in: the original of this file was overwritten by accident; put it back if you have it.

It gives `test_killed_runs.py` its `project`, the one that the pipeline tests use.
"""

import importlib.util
import sys
from pathlib import Path

_SOURCE = Path(__file__).parents[1] / "pipelines" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("pipelines_conftest", _SOURCE)
_MODULE = importlib.util.module_from_spec(_SPEC)
sys.modules["pipelines_conftest"] = _MODULE
_SPEC.loader.exec_module(_MODULE)

project = _MODULE.project
