"""The tree keeps its shape: folders, doors, budgets and names."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ROOT / "components" / "perennial"
SOURCES = sorted([*(ROOT / "components").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")])
STEPS = sorted(path.parent for path in COMPONENTS.glob("*/component.py"))
FOUNDATIONS = {
    "contracts", "clients", "data", "steps", "engine", "reports", "tasks", "registry", "training_jobs", "gate", "studies",
}  # fmt: skip

# Outside package → the only places that may import it.
DOORS = {
    "kfp": r"components/perennial/\w+/component\.py|pipelines/perennial/(deployment/)?\w+\.py",
    "great_expectations": r"components/perennial/validate_data/(expectations|suites/judging)\.py",
    "mlflow": r"components/perennial/(clients/(mlflow_client|tracking|pyfunc_flavor|pyfunc_process)|registry/model_registry)\.py",
    "boto3": r"components/perennial/clients/s3_store\.py",
    "botocore": r"components/perennial/clients/s3_store\.py",
    "pyspark": r"components/perennial/validate_data/suites/spark_rows\.py",
    "distributed": r"components/perennial/data/executor\.py",
    "jinja2": r"components/perennial/reports/page\.py",
    "kubernetes": r"components/perennial/clients/cluster\.py",
    "torch": r"components/perennial/(engine|tasks|check_skeleton|select_checkpoint|gate|detect_drift)/.*\.py",
    "optuna": r"components/perennial/studies/sampling\.py",
    "safetensors": r"components/perennial/engine/(export|data/block_cache)\.py",
}
BANNED = re.compile(
    r"(^|_)(utils?|helpers?|common|misc|shared|base|manager|handler|types|constants)(_|$)"
)


def relative(path):
    return path.relative_to(ROOT).as_posix()


@cache
def nodes_of(path):
    """All nodes of a file; each file is parsed once for all tests."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports_of(path):
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def functions_of(path):
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_every_folder_of_components_is_a_step_or_a_foundation():
    folders = {path.name for path in COMPONENTS.iterdir() if (path / "__init__.py").exists()}
    assert folders == {path.name for path in STEPS} | FOUNDATIONS


@pytest.mark.parametrize("step", STEPS, ids=lambda path: path.name)
def test_step_has_three_layers_and_a_readme(step):
    names = {path.name for path in step.iterdir()}
    assert {"component.py", "step.py", "README.md", "__init__.py"} <= names
    assert len((step / "component.py").read_text().splitlines()) <= 60
    assert len((step / "step.py").read_text().splitlines()) <= 100
    assert f"def {step.name}(" in (step / "component.py").read_text()
    assert f"def {step.name}_step(" in (step / "step.py").read_text()


@pytest.mark.parametrize("step", STEPS, ids=lambda path: path.name)
def test_step_readme_answers_the_same_questions(step):
    text = (step / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    for heading in (
        "Question",
        "Inputs",
        "Outputs",
        "Options",
        "Fails when",
        "Example",
        "Decisions",
    ):
        assert re.search(rf"^##+ {heading}", text, re.M), heading


@pytest.mark.parametrize("package", DOORS)
def test_outside_package_has_one_door(package):
    outside = [
        relative(path)
        for path in SOURCES
        if any(name.partition(".")[0] == package for name in imports_of(path))
        and not re.fullmatch(DOORS[package], relative(path))
    ]
    assert outside == []


def test_component_bodies_only_wire():
    for step in STEPS:
        (function,) = functions_of(step / "component.py")
        statements = [
            node
            for node in function.body
            if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant)
        ]
        assert len(statements) <= 5, step.name


def test_files_functions_and_parameters_stay_in_budget():
    problems = []
    for path in SOURCES:
        lines = len(path.read_text().splitlines())
        if lines > 600:
            problems.append(f"{relative(path)}: {lines} lines")
        for function in functions_of(path):
            length = function.end_lineno - function.lineno + 1
            if length > 60:
                problems.append(f"{relative(path)}:{function.name}: {length} lines")
            arguments = function.args.args + function.args.kwonlyargs
            count = sum(argument.arg not in ("self", "cls") for argument in arguments)
            wiring = path.name in ("component.py", "step.py")
            if count > (12 if wiring else 8):
                problems.append(f"{relative(path)}:{function.name}: {count} parameters")
    assert problems == []


def test_every_module_has_a_docstring():
    silent = [relative(p) for p in SOURCES if not ast.get_docstring(nodes_of(p)[0])]
    assert silent == []


def test_no_path_is_named_after_nothing():
    named = {part.removesuffix(".py") for path in SOURCES for part in path.relative_to(ROOT).parts}
    assert [name for name in named if BANNED.search(name)] == []


def test_package_files_import_nothing():
    for path in SOURCES:
        if path.name == "__init__.py":
            assert list(imports_of(path)) == [], relative(path)


def test_pipeline_definitions_load_without_heavy_packages():
    """Compilation must stay fast: each resource setting walks the stack of everything imported."""
    program = (
        "import sys, perennial.compilation, perennial.contract\n"
        "heavy = {'torch', 'mlflow', 'great_expectations', 'sklearn', 'scipy'} & set(sys.modules)\n"
        "sys.exit(f'imports {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


def test_import_directions_hold():
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports"))],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# Programs that no test imports: what they import from Perennial must exist all the same.
PROGRAMS = sorted([*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "tests/support").glob("*.py")])


def test_benchmarks_and_programs_of_the_tests_import_what_exists():
    missing = []
    for path in PROGRAMS:
        for node in nodes_of(path):
            if not isinstance(node, ast.ImportFrom) or not str(node.module).startswith("perennial"):
                continue
            with warnings.catch_warnings():
                # Great Expectations imports a module that Python has deprecated.
                warnings.simplefilter("ignore", DeprecationWarning)
                module = importlib.import_module(str(node.module))
            for name in (alias.name for alias in node.names if not hasattr(module, alias.name)):
                if importlib.util.find_spec(f"{node.module}.{name}") is None:
                    missing.append(f"{relative(path)}: {node.module}.{name}")
    assert missing == []
