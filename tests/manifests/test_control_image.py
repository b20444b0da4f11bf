"""What a CronJob or the exporter runs needs no package that the control image lacks."""

import subprocess
import sys

import pytest

# Packages of the other images' extras (pyproject.toml).
ABSENT = ("great_expectations", "numpy", "pandas", "polars", "pyarrow", "scipy", "sklearn", "torch")
PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"the control image has no {{name}}", name=name)

sys.meta_path.insert(0, Absent())
import {module}
"""


@pytest.mark.parametrize(
    "module",
    ["perennial.deployment.watch", "perennial.deployment.exporter", "perennial.deployment.verbs"],
)
def test_what_watches_imports_nothing_that_its_image_lacks(module):
    program = PROGRAM.format(absent=set(ABSENT), module=module)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
