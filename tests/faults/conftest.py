"""The same small stream as the pipelines' tests."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).resolve().parents[1] / "pipelines" / "conftest.py"
_SPEC = importlib.util.spec_from_file_location("pipelines_conftest", _PATH)
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)

project = _MODULE.project
write_month = _MODULE.write_month
