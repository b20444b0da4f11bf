"""The page: the verdict in a sentence, advice worst first, waivers and severities, examples."""

import math

import pytest

from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.report import Preview, build_page, make_preview
from perennial.check_skeleton.verdict import format_verdict, list_contract_changes, summarise
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.tabular import TabularClassification
from skeleton_tables import prepared
from workshop import Workshop

PREVIEW = Preview(
    header=("label", "price"), rows=(("1", "9.5"),), tensors=(("price",) + ("1",) * 5,)
)


class EverySecondShown(ImageClassification):
    """Some examples are no pictures."""

    def picture(self, batch, index):
        return None if index % 2 else super().picture(batch, index)


class Shifted(TabularClassification):
    def augment(self, batch, generator):
        return {**batch, "numbers": batch["numbers"] + 100}


class Breaking(TabularClassification):
    def augment(self, batch, generator):
        raise ValueError("no such column")


def result(check, outcome="passed", **fields):
    measured = "" if outcome == "skipped" else f"{check} measured"
    hint = f"fix {check}" if outcome in ("failed", "warned") else ""
    values = {"measured": measured, "expected": "health", "hint": hint, "source": "a guide"}
    return CheckResult(check=check, outcome=outcome, **values | fields)


def report(*results):
    return SkeletonReport(results=results, baselines={"constant": {"loss": 0.69}})


def page(*results):
    return build_page(report(*results), PREVIEW, ("no linear baseline",), 0.2)


def test_the_worst_advice_comes_first_and_what_passed_is_folded():
    html = page(result("encoding"), result("labels", "warned"), result("loss_floor", "failed"))
    html = html.html()
    places = [html.index(f">{text}\nmeasured: ") for text in ("fix loss_floor", "fix labels")]
    folded = html.index("<summary>Passed checks (1)")
    assert places == sorted(places)
    assert (
        places[-1]
        < html.index("Inputs right before the model")
        < folded
        < html.index("encoding meas")
    )


def test_unmeasured_checks_are_listed_in_the_verdict():
    unmeasured = Judge("rank_data").unmeasured("6 updates timed out after 120 s")
    found = SkeletonReport(
        results=(result("labels", "passed"), unmeasured, result("augmentation", "skipped")),
        baselines={},
    )
    verdict = format_verdict(found)
    assert verdict.startswith(
        "Training may start: none of 2 checks blocks training, but rank_data could not run; "
        "1 passed, 1 not applicable, 1 not measured."
    )
    assert summarise(found) == "1 passed, 1 not applicable; not measured: rank_data"
    page = build_page(found, PREVIEW, (), 0.2).html()
    assert "every applicable check passed" not in page
    assert "measured: not measured: 6 updates timed out after 120 s" in page
    assert unmeasured.outcome == "warned"


@pytest.mark.parametrize(
    ("results", "outcome", "verdict"),
    [
        ([result("labels")], "passed", "Ready to train: none of 1 checks blocks"),
        ([result("labels", "warned")], "warned", "Training may start: none of 1 checks"),
        (
            [result("labels", "failed"), result("encoding"), result("augmentation", "skipped")],
            "failed",
            "would waste its budget: 1 of 3 checks failed (labels); 1 passed, 1 skipped",
        ),
        ([result("labels", "failed")], "failed", "1 of 1 checks failed (labels). They took"),
        (
            [result("labels", "failed", waived="noisy"), result("encoding")],
            "warned",
            "may start: none of 2 checks blocks training; 1 passed, 1 waived",
        ),
    ],
)
def test_the_verdict_is_one_sentence_with_counts(results, outcome, verdict):
    shown = page(*results)
    assert shown.outcome == outcome
    assert shown.summary == format_verdict(report(*results))
    assert verdict in shown.summary


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (result("labels"), []),
        (result("labels", "failed", waived="noisy"), ["waived: noisy"]),
        (result("labels", "skipped", severity="off"), ["switched off"]),
        (result("labels", "warned", severity="warn"), ["failed, counted as a warning"]),
        (result("labels", "failed", severity="fail"), ["warned, counted as a failure"]),
        (result("labels", waived="old"), ["its waiver is not needed, remove it"]),
        (
            result("labels", "skipped", severity="off", waived="old"),
            ["switched off", "its waiver is not needed"],
        ),
        # Whether the failure is gone is not known.
        (result("labels", "skipped", waived="old"), ["waived: old"]),
    ],
)
def test_page_lists_waivers_and_severities(one, expected):
    found = list(list_contract_changes(one))
    assert len(found) == len(expected)
    assert all(each.startswith(start) for each, start in zip(found, expected, strict=True))
    html = page(one).html()
    assert ("Waivers and severities" in html) == bool(expected)


def test_the_console_names_what_is_waived_and_switched_off():
    results = [result("labels", "failed", waived="noisy"), result("encoding", waived="old")]
    off = result("augmentation", "skipped", severity="off")
    summary = summarise(report(*results, off))
    assert summary == "1 passed; waived: labels; switched off: augmentation"


def test_evidence_is_drawn_and_the_first_loss_is_on_a_scale():
    curves = {"2 examples": [[0.0, 0.7], [1.0, 0.2]]}
    paths = {"example 0": [[0.0, 0.5], [1.0, 0.9]]}
    matrix = [[1.0, 0.0], [0.4, 1.0]]
    shown = page(
        result("initial_loss", evidence={"initial_loss": 0.71, "theory": 0.69}),
        result("initial_bias", evidence={"best_constant": 0.5}),
        result("overfit_one_batch", evidence={"curves": curves}),
        result("reproducibility", evidence={"prediction_paths": paths}),
        result("future_independence", evidence={"dependencies": matrix}),
        result("example_independence", evidence={"dependencies": matrix}),
    ).html()
    assert shown.count("<figure>") == 5
    for name in ("theory 0.69", "measured 0.71", "best constant 0.5"):
        assert f">{name}<" in shown
    for about in ("loss by step", "prediction by step", "output position by input position"):
        assert about in shown
    assert "output example by input example" in shown


def test_evidence_that_is_not_finite_is_stored_drawn_and_named(tmp_path):
    judge = Judge("initial_loss", expected="a number", source="a guide")
    curves = {"32 examples": ((0.0, 0.7), (1.0, math.nan), (2.0, -math.inf))}
    failed = judge.failed(
        "inf", hint="scale the inputs", initial_loss=math.inf, theory=0.69, curves=curves
    )
    report(failed).write(tmp_path)
    assert SkeletonReport.read(tmp_path) == report(failed)
    html = page(failed).html()
    assert "not finite: measured" in html
    assert html.count("<figure>") == 2


def drawn(shown):
    return build_page(report(result("labels")), shown, (), 0.2).html()


def test_augmented_pictures_are_drawn_and_missing_ones_leave_a_gap(tmp_path):
    options = {"augmentation": {"shift": 2}}
    subject = Workshop(tmp_path).subject(EverySecondShown, "digits", options=options)
    shown = make_preview(subject)
    assert shown.pictures.count("<image") == shown.augmented_pictures.count("<image") == 4
    assert shown.pictures != shown.augmented_pictures
    html = drawn(shown)
    assert html.index("first examples as the model") < html.index("same examples after augment")


@pytest.mark.parametrize(
    ("task_type", "is_shown"), [(TabularClassification, False), (Shifted, True), (Breaking, False)]
)
def test_rows_are_decoded_again_after_augmentation(task_type, is_shown, datasets):
    shown = make_preview(prepared(task_type, datasets("binary")))
    assert bool(shown.augmented_rows) == is_shown
    assert shown.rows != shown.augmented_rows
    assert ("The same after augmentation" in drawn(shown)) == is_shown
