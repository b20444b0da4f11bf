"""The card reads well to a stranger: what it is, how far to trust it, how to use it, where it is from."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.gate import (
    CalibrationBin,
    Comparison,
    Figure,
    GateReason,
    Interval,
    ReferenceTest,
    Serving,
    SliceComparison,
    Verdict,
)
from perennial.contracts.initial_model import Origin
from perennial.contracts.lineage import Lineage
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.contracts.training import Challenger, ScoredCandidate, TrainingResult
from perennial.contracts.validation import Expectation, ValidationReport
from perennial.registry.model_card import CardContent, model_card
from perennial.registry.version_files import ModelVersion
from perennial.registry_commands.catalogue import VersionRecord
from perennial.registry_commands.explanation import explanation_parts

GOLDEN = Path(__file__).with_name("golden_card.md")
TASK = "perennial.tasks.tabular:TabularClassification"


def check(name, outcome, **more):
    return CheckResult(
        check=name, outcome=outcome, measured="0.5", expected="0.0", source="guide", **more
    )


@pytest.fixture
def content():
    snapshot = Snapshot(
        data=DataSection(
            uri="s3://ads/clicks", label="clicked", time="shown_at", ids=("row",), meta=("region",)
        ),
        split=SplitSection(),
        files=(DataFile(uri="s3://ads/clicks/part.parquet", size_bytes=1, sha256="0", rows=12000),),
        columns={
            "clicked": "Int64", "price": "Float64", "region": "String", "row": "Int64",
            "shown_at": "Datetime(time_unit='us', time_zone=None)", "site": "String",
        },
        rows=12000,
        split_rows={Split.TEST: 3000, Split.TRAIN: 7200, Split.VALIDATION: 1800},
        time_min=datetime(2025, 1, 1), time_max=datetime(2025, 3, 31),
    )  # fmt: skip
    improvement = Interval(estimate=0.025, low=0.01, high=0.04)
    verdict = Verdict(
        promote=True, summary="Promote: log_loss is better by 0.025.", champion_version="3",
        reasons=(
            GateReason(condition="better than the champion", held=True, detail="by 0.025, at least 0.01"),
            GateReason(condition="serves in a clean process", held=True, detail="64 rows alike"),
        ),
        comparisons=(
            Comparison(
                metric="log_loss", challenger=0.4, champion=0.425, improvement=improvement,
            ),
            Comparison(
                metric="roc_auc", challenger=0.75, champion=0.7,
                improvement=Interval(estimate=0.05, low=0.02, high=0.08),
                reference_test=ReferenceTest(test="DeLong", p_value=0.001, is_better=True),
            ),
        ),
        slices=(
            SliceComparison(
                column="region", value="b", rows=600, challenger=0.45, champion=0.44,
                improvement=Interval(estimate=-0.01, low=-0.03, high=0.01), regressed=False,
            ),
        ),
        serving=Serving(megabytes=0.25, rows=64, milliseconds=1.5, loading_seconds=2.0),
        notes=("version 3 was trained on 12 of the test rows",),
        baselines={"constant": {"log_loss": 0.69, "roc_auc": 0.5}},
        test_rows=3000, test_blocks=23, performance_reference=(),
        figures=(
            Figure(metric="log_loss", value=0.4, interval=Interval(estimate=0.4, low=0.38, high=0.42)),
            Figure(metric="roc_auc", value=0.75, interval=None),
        ),
        calibration=(
            CalibrationBin(rows=1500, predicted=0.2, observed=0.25),
            CalibrationBin(rows=1500, predicted=0.8, observed=0.78),
        ),
    )  # fmt: skip
    candidates = tuple(
        ScoredCandidate(
            step=step, uri="", metrics={"log_loss": loss}, standard_error=0.01,
            kept_as=kept, members=members,
        )
        for step, loss, kept, members in (
            (200, 0.41, ("best",), ()), (300, 0.42, ("last",), ()), (300, 0.4, ("best",), (200, 300)),
        )
    )  # fmt: skip
    challenger = Challenger(
        task=TASK, options={"hidden": [64]}, task_state={}, columns=snapshot.task_columns,
        training_fingerprint="f", metric="log_loss", direction="minimize", chosen_step=300,
        chosen_members=(200, 300), candidates=candidates,
        reason="the mean of steps 200, 300 has the best log_loss",
        diagnosis=("validation got no better after step 200",), advice="shorter", next_steps=250,
        weights_sha256="5" * 64,
    )  # fmt: skip
    return CardContent(
        name="clicks",
        description="Predicts clicks for the auction. Answers for it: the ads team.",
        snapshot=snapshot,
        validation=ValidationReport(
            snapshot_digest="d", facts={}, blocks=(),
            expectations=(
                Expectation(
                    name="expect_column_values_to_be_between", subject="price", severity="warning",
                    outcome="failed", expected="0 to 10", observed="0 to 12",
                ),
                Expectation(
                    name="expect_column_values_to_not_be_null", subject="site",
                    severity="critical", outcome="passed", expected="", observed="",
                ),
            ),
        ),
        skeleton=SkeletonReport(
            results=(
                check("loss_at_init", "passed"),
                check("overfit_one_batch", "failed", waived="labels are noisy by nature"),
                check("labels", "warned", severity="warn"),
                check("augmentation", "skipped", severity="off"),
            ),
            baselines={},
        ),
        training=TrainingResult(
            fingerprint="f", task=TASK, options={}, columns=snapshot.task_columns, task_state={},
            steps=300, world_size=2, strategy="fsdp", num_parameters=1000, history=(),
            evaluations=(), checkpoints=(), seconds=12.0, num_resumes=1, num_skipped=2,
        ),
        challenger=challenger,
        verdict=verdict,
        lineage=Lineage(
            contract_digest="c", snapshot_digest="s", code_digest="k", commit="abc-dirty",
            diff_digest="d1", image_digest="sha256:0f", python="3.11.7", platform="Linux x86_64",
            packages={"torch": "2.13.0", "numpy": "2.4.6"}, seed=7, run_id="run-1",
            tracking_run_id="t1", trigger={"trigger": "drift"}, parent_version="3",
        ),
    )  # fmt: skip


def test_the_card_is_word_for_word_the_golden_one(content):
    assert model_card(content) == GOLDEN.read_text(), "look at it as a stranger before you keep it"


@pytest.mark.hostile
@pytest.mark.parametrize(
    "text", ["<img src=x onerror=alert(1)>", "` </td><script>alert(1)</script>"]
)
def test_names_and_values_of_the_data_are_not_html(content, text):
    part = content.verdict.slices[0].model_copy(update={"column": text, "value": text})
    summary = f"Promote: the slice {text} is better, p < 0.05."
    verdict = content.verdict.model_copy(
        update={"slices": (part,), "notes": (text,), "summary": summary}
    )
    columns = content.snapshot.columns | {text: "Float64"}
    features = content.challenger.columns.features | {text: "Float64"}
    challenger = content.challenger.model_copy(
        update={"columns": content.challenger.columns.model_copy(update={"features": features})}
    )
    snapshot = content.snapshot.model_copy(update={"columns": columns})
    hostile = replace(content, verdict=verdict, challenger=challenger, snapshot=snapshot)
    card = model_card(hostile)
    assert "alert(1)" in card
    assert "<img" not in card
    assert "<script" not in card
    assert "</td" not in card
    assert "p < 0.05" in card


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("At a glance", "log_loss: 0.4 [0.38, 0.42] on 3,000 rows"),
        ("Limits", "version 3 was trained on 12 of the test rows"),
        ("Limits", "overfit_one_batch failed and was waived: labels are noisy by nature"),
        ("Limits", "augmentation was not checked"),
        ("Limits", "labels failed; the contract sets it to a warning"),
        ("Limits", "not tested on data after 2025-03-31"),
        ("How to use it", 'load_model("models:/clicks@champion")'),
        ("Why this version", "| better than the champion | yes | by 0.025"),
        ("Quality", "+0.05 [+0.02, +0.08]; DeLong: better, p = 0.001"),
        ("Quality", "| region = b | 600 |"),
        ("Quality", "the mean error of its probabilities is 0.035"),
        ("Data", "7,200 train, 1,800 validation, 3,000 test rows"),
        ("Training and selection", "the mean of the weights of steps 200, 300"),
        ("Training and selection", "updates skipped (not finite): 2"),
        ("Training and selection", "advice for the next training: shorter"),
        ("Training and selection", "| **mean of steps 200, 300** | 0.4 |"),
        ("Checks", "1 passed, 1 failed, 1 warned, 1 switched off"),
        ("Checks", "not met: expect_column_values_to_be_between of price: 0 to 12"),
        ("Lineage", "| uncommitted changes | `d1` |"),
        ("Lineage", "| trigger | drift |"),
    ],
)
def test_each_question_has_its_section(content, section, message):
    parts = dict(part.split("\n", 1) for part in model_card(content).split("## ")[1:])
    assert message in parts[section]


def test_a_first_version_without_slices_or_probabilities_reports_it(content):
    first = content.verdict.model_copy(
        update={
            "champion_version": "", "slices": (), "calibration": (), "notes": (),
            "comparisons": (
                Comparison(metric="rmse", challenger=2.0, champion=None, improvement=None),
            ),
            "figures": (Figure(metric="rmse", value=2.0, interval=None),),
        }
    )  # fmt: skip
    text = model_card(CardContent(**(vars(content) | {"verdict": first})))
    assert "quality on subgroups was not compared" in text
    assert "the uncertainty of its metrics is unknown" in text
    assert "probabilities" not in text
    assert "| rmse | 2 |  |  |" in text


def explained(lineage):
    """The rows that `explain` prints of a training, of a version without other records."""
    version = ModelVersion("clicks", "3", {}, "run", "mlflow", datetime(2025, 1, 1))
    rest = dict.fromkeys(("verdict", "challenger", "snapshot", "skeleton", "contract"))
    record = VersionRecord(version, (), lineage, contract_text=b"", diff=b"", **rest)
    return explanation_parts(record)["Training"]


def test_the_card_and_the_explanation_name_the_initial_weights_and_their_licence(content):
    origin = Origin(
        source="huggingface", uri="s3://mirror/bert", revision="c0ffee" * 6, license="apache-2.0",
        files={"model.safetensors": "5ee" * 20},
    )  # fmt: skip
    lineage = content.lineage.model_copy(update={"initial": origin})
    text = model_card(CardContent(**(vars(content) | {"lineage": lineage})))
    named = f"s3://mirror/bert at {'c0ffee' * 6}, SHA-256 5ee5ee5ee5ee, licence apache-2.0"
    assert f"| initial weights | {named} |" in text
    assert ("initial weights", named) in explained(lineage)


def test_the_card_and_the_explanation_name_the_teachers(content):
    told = {"source": "version", "uri": "mlflow", "model": "big", "files": {"model": "5ee" * 20}}
    teachers = tuple(Origin(version=number, **told) for number in ("2", "4"))
    lineage = content.lineage.model_copy(update={"teachers": teachers})
    text = model_card(CardContent(**(vars(content) | {"lineage": lineage})))
    assert (
        "| teachers | big version 2, SHA-256 5ee5ee5ee5ee, licence not recorded; big vers" in text
    )
    assert [value for name, value in explained(lineage) if name == "teacher"] == [
        each.describe() for each in teachers
    ]
