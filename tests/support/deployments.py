"""A contract and a profile to deploy with, and the server that they are deployed to."""

from perennial.contract import Contract
from perennial.contracts.data import DataSection, ModelSection
from perennial.deployment.profile import Profile

DIGEST = "sha256:" + "0123456789abcdef" * 4


def profile(url="http://127.0.0.1:1", **sections):
    images = {
        name: f"registry.example/perennial-{name}@{DIGEST}"
        for name in ("data", "trainer", "control")
    }
    values = {
        "server": {"pipelines_url": url},
        "images": images,
        "stores": {
            "store_uri": "s3://perennial/store",
            "tracking_uri": "http://mlflow.mlflow:5000",
        },
        "schedules": {"monitoring": "0 3 * * *"},
    }
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return Profile.model_validate(values, strict=False)


def contract(name="flights-late", uri="s3://perennial/flights", **sections):
    return Contract(
        model=ModelSection(name=name, task="perennial.tasks.tabular:TabularClassification"),
        data=DataSection(uri=uri, label="late", ids=("flight",)),
        **sections,
    )
