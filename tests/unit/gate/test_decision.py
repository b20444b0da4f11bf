"""Each condition of the gate can hold and can fail, and any failure keeps the champion."""

from dataclasses import replace

import pytest
from pydantic import ValidationError

from perennial.contracts.gate import (
    AnchorComparison,
    Comparison,
    Figure,
    Interval,
    Repeats,
    Serving,
    SliceComparison,
)
from perennial.gate.config import GateSection
from perennial.gate.decision import Evidence, RareClass, judge, summarize

BETTER = Interval(estimate=0.02, low=0.005, high=0.035)
WORSE = Interval(estimate=-0.02, low=-0.035, high=-0.005)
UNCLEAR = Interval(estimate=0.02, low=-0.005, high=0.045)
TIE = Interval(estimate=0.0, low=0.0, high=0.0)


def comparisons(improvement=BETTER, loss=BETTER, *, champion=0.8):
    return (
        Comparison(metric="auc", challenger=0.82, champion=champion, improvement=improvement),
        Comparison(metric="log_loss", challenger=0.4, champion=champion, improvement=loss),
    )


def slice_of(*, regressed):
    return SliceComparison(
        column="region", value="b", rows=500, challenger=0.7, champion=0.75,
        improvement=WORSE, regressed=regressed,
    )  # fmt: skip


HIDDEN_SLICE = slice_of(regressed=True).model_copy(update={"column": "", "found": True})
GOOD = Evidence(
    comparisons=comparisons(),
    directions={"auc": "maximize", "log_loss": "minimize"},
    slices=(),
    baselines={"constant": {"auc": 0.5, "log_loss": 0.69}, "linear": {"auc": 0.81}},
    champion_version="3",
    champion_failure="",
    same_weights=False,
    test_rows=5000,
    test_blocks=40,
    unit="day",
)
FIRST = replace(GOOD, champion_version="", comparisons=comparisons(None, None, champion=None))
BROKEN = replace(FIRST, champion_version="3", champion_failure="KeyError: 'embedding'")
SERVED = replace(GOOD, serving=Serving(megabytes=3.0, rows=64, milliseconds=2.0))
TOO_LARGE_TO_SERVE = replace(GOOD, serving=Serving(megabytes=3.0))  # divided over processes
UNSERVED = replace(GOOD, serving=Serving(megabytes=3.0, failure="KeyError: 'scale'"))
LENIENT = GateSection(mode="non_inferior", margin=0.01)
FRESH = replace(GOOD, comparisons=comparisons(UNCLEAR), gains={"fresher": True, "smaller": False})
SLICED = GateSection(slices=("region",))
RANKED = replace(
    GOOD,
    comparisons=(GOOD.comparisons[0].model_copy(update={"metric": "roc_auc"}),),
    directions={"roc_auc": "maximize"},
    baselines={"constant": {"roc_auc": 0.5}},
)


def beside_anchor(evidence, improvement=None, failure=""):
    """An anchor, version 1, against which the challenger improves so much."""
    found = None if improvement is None else comparisons(improvement)[0]
    anchor = AnchorComparison(version="1", comparison=found, failure=failure)
    return replace(evidence, anchor=anchor)


def with_bounds(low, high):
    """The challenger's own ROC area, 0.82, with bounds."""
    own = Interval(estimate=0.82, low=low, high=high)
    return replace(GOOD, figures=(Figure(metric="auc", value=0.82, interval=own),))


def beside_linear(low):
    """The challenger's ROC area, 0.82, less that of a linear model, 0.81, with its bound."""
    found = GOOD.comparisons[0].model_copy(
        update={"champion": 0.81, "improvement": Interval(estimate=0.01, low=low, high=0.03)}
    )
    return replace(FIRST, baselines=GOOD.baselines, beside_baselines={"linear": found})


def alike_days(evidence, *, worth, metric=0):
    """Days of which one metric's improvement lasts."""
    found = list(evidence.comparisons)
    update = {"effective_blocks": worth, "correlation": 0.8}
    found[metric] = found[metric].model_copy(update=update)
    return replace(evidence, comparisons=tuple(found))


LINEAR = GateSection(must_beat=("linear",))

REPLACING = GateSection(replace_unscored_champion=True)

HELD = {
    "better": (GateSection(), GOOD, "lower bound above 0"),
    "first model": (GateSection(), FIRST, "no champion yet"),
    "champion that no longer loads, if a person allows it": (
        REPLACING,
        BROKEN,
        "(KeyError: 'embedding') and is replaced without a comparison",
    ),
    "guard within its limit": (
        GateSection(max_regression={"log_loss": 0.01}),
        replace(GOOD, comparisons=comparisons(loss=UNCLEAR)),
        "limit -0.01",
    ),
    "guard of 0 on a metric of equal values": (
        GateSection(max_regression={"log_loss": 0.0}),
        replace(GOOD, comparisons=comparisons(loss=TIE)),
        "limit +0",
    ),
    "guards need a champion": (GateSection(max_regression={"log_loss": 0.0}), FIRST, ""),
    "slice worse but not clearly": (
        SLICED,
        replace(GOOD, slices=(slice_of(regressed=False),)),
        "none of 1 slices",
    ),
    "a hidden slice that is only shown": (
        GateSection(hidden_slices="show"),
        replace(GOOD, slices=(HIDDEN_SLICE,)),
        "",
    ),
    "required reached, upwards": (GateSection(required={"auc": 0.82}), GOOD, "required 0.82"),
    "required reached, downwards": (GateSection(required={"log_loss": 0.4}), GOOD, ""),
    "a baseline that need not be beaten": (
        GateSection(),
        replace(GOOD, baselines={"constant": {"auc": 0.5}, "linear": {"auc": 0.99}}),
        "of constant",
    ),
    "days worth enough independent ones": (
        GateSection(),
        alike_days(GOOD, worth=12.0),
        "40 days count as 12.0 independent days, minimum 12",
    ),
    "a first challenger, on days that a second one could not use": (
        GateSection(),
        replace(alike_days(GOOD, worth=18.0), repeats=Repeats(earlier=0, worth=0.0, level=0.05)),
        "minimum 12",
    ),
    "a later challenger, on enough independent days": (
        GateSection(),
        replace(alike_days(GOOD, worth=18.5), repeats=Repeats(earlier=1, worth=1.0, level=0.01)),
        "40 days count as 18.5 independent days, minimum 18.4 at 99.00% confidence",
    ),
    "groups have no yesterday": (
        GateSection(),
        replace(alike_days(GOOD, worth=3.0), unit="group"),
        "",
    ),
    "enough of the rarer class": (
        GateSection(),
        replace(RANKED, rare=RareClass(50, 8)),
        "50 test rows of the rarer class",
    ),
    "a rarer class, of which a mean over rows need not have many": (
        GateSection(),
        replace(GOOD, rare=RareClass(5, 3)),
        "",
    ),
    "a first model with hardly a row of the rarer class": (
        GateSection(),
        replace(
            RANKED,
            champion_version="",
            rare=RareClass(5, 3),
            comparisons=(
                RANKED.comparisons[0].model_copy(update={"champion": None, "improvement": None}),
            ),
        ),
        "no champion yet",
    ),
    "days that judged other challengers": (
        GateSection(),
        replace(GOOD, repeats=Repeats(earlier=2, worth=1.5, level=0.0109)),
        "at 98.91% confidence, because 2 challengers were already tested on these days",
    ),
    "not worse than the anchor either": (
        LENIENT,
        beside_anchor(FRESH, UNCLEAR),
        "against version 1, the last champion that was",
    ),
    "better than the champion, and not clearly worse than the anchor": (
        GateSection(),
        beside_anchor(GOOD, UNCLEAR),
        "upper bound must reach 0",
    ),
    "better than the champion, beside an anchor that is gone": (
        GateSection(),
        beside_anchor(GOOD, failure="it was deleted"),
        "is not compared: it was",
    ),
    "required shown": (
        GateSection(required={"auc": 0.8}),
        with_bounds(0.80, 0.84),
        "lower bound 0.8",
    ),
    "people beaten for certain": (
        GateSection(must_beat=("human",)),
        replace(with_bounds(0.80, 0.84), baselines={"human": {"auc": 0.79}}),
        "lower bound 0.8",
    ),
    "a baseline beside a champion that had to beat it": (
        LINEAR,
        with_bounds(0.80, 0.84),
        "of linear (by the estimate, as there is a champion)",
    ),
    "a baseline beaten for certain": (
        LINEAR,
        beside_linear(0.004),
        "of linear (lower bound of the difference +0.004)",
    ),
    "better than a baseline on its sample of the rows": (
        LINEAR,
        replace(GOOD, baselines={"linear": {"auc": 0.83}}, on_baseline_rows=0.84),
        "auc 0.84 beats 0.83 of linear (by the estimate",
    ),
    "not worse, and fresher": (LENIENT, FRESH, "lower bound above -0.01"),
    "serves within its limits": (
        GateSection(max_megabytes=3.0, max_milliseconds=2.0),
        SERVED,
        "2 ms per row, limit 2",
    ),
    "baselines not asked for": (
        GateSection(must_beat=()),
        replace(GOOD, baselines={}),
        "",
    ),
}
FAILED = {
    "champion that no longer loads": (GateSection(), BROKEN, "better than the champion"),
    "champion that no longer loads, leniently": (LENIENT, BROKEN, "not worse than the champion"),
    "worse": (
        GateSection(), replace(GOOD, comparisons=comparisons(WORSE)), "better than the champion",
    ),
    "unclear": (
        GateSection(), replace(GOOD, comparisons=comparisons(UNCLEAR)), "better than the champion",
    ),
    "tie": (GateSection(), replace(GOOD, comparisons=comparisons(TIE)), "better than the champion"),
    "better by too little": (
        GateSection(min_improvement=0.01), GOOD, "better than the champion",
    ),
    "one block": (
        GateSection(), replace(GOOD, comparisons=comparisons(None)), "better than the champion",
    ),
    "the champion itself": (
        GateSection(), replace(GOOD, same_weights=True), "differs from the champion",
    ),
    "guard beyond its limit": (
        GateSection(max_regression={"log_loss": 0.001}),
        replace(GOOD, comparisons=comparisons(loss=UNCLEAR)),
        "no regression of log_loss",
    ),
    "slice regresses": (
        SLICED, replace(GOOD, slices=(slice_of(regressed=True),)), "no slice regresses",
    ),
    "loses to a baseline": (
        LINEAR, replace(GOOD, baselines={"linear": {"auc": 0.83}}), "beats the baseline linear",
    ),
    "loses to a baseline on its sample of the rows": (
        LINEAR, replace(GOOD, on_baseline_rows=0.70), "beats the baseline linear",
    ),
    "loses to people": (
        GateSection(must_beat=("human",)), replace(GOOD, baselines={"human": {"auc": 0.83}}),
        "beats the baseline human",
    ),
    "loses to the label before": (
        GateSection(must_beat=("last_value",)),
        replace(GOOD, baselines={"last_value": {"auc": 0.83}}), "beats the baseline last_value",
    ),
    "better than a baseline by luck, maybe": (
        LINEAR, beside_linear(-0.004), "beats the baseline linear",
    ),
    "no better than a baseline": (
        LINEAR, replace(GOOD, baselines={"linear": {"auc": 0.82}}), "beats the baseline linear",
    ),
    "first model loses to the constant": (
        GateSection(), replace(FIRST, baselines={"constant": {"auc": 0.9}}),
        "beats the baseline constant",
    ),
    "first model after a broken champion loses to the constant": (
        REPLACING, replace(BROKEN, baselines={"constant": {"auc": 0.9}}),
        "beats the baseline constant",
    ),
    "baseline not measured on the gate's metric": (
        GateSection(), replace(GOOD, baselines={"constant": {"f1": 0.1}}),
        "beats the baseline constant",
    ),
    "baseline that nobody measured": (LINEAR, replace(GOOD, baselines={"constant": {"auc": 0.5}}),
        "beats the baseline linear",
    ),
    "required missed, upwards": (
        GateSection(required={"auc": 0.9}), GOOD, "auc is good enough at all",
    ),
    "required reached by luck": (
        GateSection(required={"auc": 0.8}), with_bounds(0.79, 0.85), "auc is good enough at all",
    ),
    "people beaten by luck": (
        GateSection(must_beat=("human",)),
        replace(with_bounds(0.78, 0.86), baselines={"human": {"auc": 0.79}}),
        "beats the baseline human",
    ),
    "required missed, downwards": (
        GateSection(required={"log_loss": 0.3}), FIRST, "log_loss is good enough at all",
    ),
    "worse than the margin allows": (
        LENIENT.model_copy(update={"margin": 0.004}), FRESH, "not worse than the champion",
    ),
    "not worse, but no fresher": (
        LENIENT, replace(FRESH, gains={"fresher": False}), "fresher than the champion",
    ),
    "not worse and fresher, but no smaller": (
        LENIENT.model_copy(update={"also_better": ("fresher", "smaller")}), FRESH,
        "smaller than the champion",
    ),
    "not worse, but no faster": (
        LENIENT.model_copy(update={"also_better": ("faster",)}),
        replace(FRESH, gains={"fresher": True, "faster": False}), "faster than the champion",
    ),
    "a hidden slice regresses": (
        GateSection(), replace(GOOD, slices=(HIDDEN_SLICE,)), "no hidden slice regresses",
    ),
    "does not serve": (GateSection(), UNSERVED, "serves in a clean process"),
    "too large": (GateSection(max_megabytes=2.9), SERVED, "small enough"),
    "too slow": (GateSection(max_milliseconds=1.9), SERVED, "fast enough"),
    "a speed that was not measured": (
        GateSection(max_milliseconds=1.9), TOO_LARGE_TO_SERVE, "fast enough",
    ),
    "too large, though not served": (
        GateSection(max_megabytes=2.9), TOO_LARGE_TO_SERVE, "small enough",
    ),
    "days that are worth few independent ones": (
        GateSection(), alike_days(GOOD, worth=11.9), "enough independent days",
    ),
    "a later challenger, on days that only a first one could use": (
        GateSection(),
        replace(alike_days(GOOD, worth=18.0), repeats=Repeats(earlier=1, worth=1.0, level=0.01)),
        "enough independent days",
    ),
    "a guard whose days are worth few independent ones": (
        GateSection(max_regression={"log_loss": 1.0}), alike_days(GOOD, worth=11.9, metric=1),
        "no regression of log_loss",
    ),
    "too few rows of the rarer class": (
        GateSection(), replace(RANKED, rare=RareClass(49, 20)), "enough rows of the rarer class",
    ),
    "too few days with the rarer class": (
        GateSection(), replace(RANKED, rare=RareClass(90, 7)),
        "enough days that hold a row of the rarer class",
    ),
    "not worse than the champion, but than the anchor": (
        LENIENT, beside_anchor(FRESH, WORSE), "not worse than the anchor",
    ),
    "better than the champion, and clearly worse than the anchor": (
        GateSection(), beside_anchor(GOOD, WORSE), "not worse than the anchor",
    ),
    "not worse, beside an anchor that is gone": (
        LENIENT, beside_anchor(FRESH, failure="it was deleted"), "not worse than the anchor",
    ),
    "too few rows": (GateSection(), replace(GOOD, test_rows=199), "enough test rows"),
    "too few blocks": (
        GateSection(), replace(GOOD, test_blocks=7), "enough independent blocks",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_it_promotes(name):
    section, evidence, detail = HELD[name]
    reasons = judge(section, evidence)
    assert [reason.condition for reason in reasons if not reason.held] == []
    assert detail in " ".join(reason.detail for reason in reasons)
    assert summarize(reasons).startswith("Promote: ")


@pytest.mark.parametrize("name", FAILED)
def test_it_keeps_the_champion(name):
    section, evidence, condition = FAILED[name]
    reasons = judge(section, evidence)
    assert [reason.condition for reason in reasons if not reason.held] == [condition]
    assert summarize(reasons).startswith("Do not promote: ")


def test_every_condition_is_covered_by_a_failing_case():
    section = SLICED.model_copy(
        update={"max_regression": {"log_loss": 1.0}, "required": {"auc": 0.0}}
    )
    conditions = {reason.condition for reason in judge(section, GOOD)}
    failing = {case[2].replace("log_loss is", "auc is") for case in FAILED.values()}
    assert conditions <= failing


def test_the_summary_counts_the_other_conditions():
    evidence = replace(GOOD, comparisons=comparisons(WORSE), test_rows=1, test_blocks=2)
    assert summarize(judge(GateSection(), evidence)).endswith("(2 more conditions not met).")


def test_slices_that_regressed_are_named_with_their_loss():
    evidence = replace(GOOD, slices=(slice_of(regressed=True),))
    assert "region = b by 0.02" in summarize(judge(SLICED, evidence))


@pytest.mark.parametrize(
    "fields",
    [
        {"min_improvement": -0.1},
        {"confidence": 1.0},
        {"max_regression": {"auc": -1.0}},
        {"also_better": ()},
        {"min_improvement": 0.01, "worth_finding": 0.01},
        {"typo": 1},
    ],
)
def test_impossible_sections_are_refused(fields):
    with pytest.raises(ValidationError):
        GateSection(**fields)


def test_a_model_that_is_too_large_to_be_served_here_may_be_promoted():
    reasons = judge(GateSection(), TOO_LARGE_TO_SERVE)
    assert all(reason.held for reason in reasons)
    assert "serves in a clean process" not in [reason.condition for reason in reasons]


def test_a_metric_that_a_constant_leaves_undefined_names_the_ways_out():
    """A constant has no correlation, so that no model could be promoted by one."""
    evidence = replace(GOOD, baselines={"constant": {"rmse": 1.0}})
    reasons = judge(GateSection(must_beat=("constant",)), evidence)
    broken = next(reason for reason in reasons if not reason.held)
    assert broken.condition == "beats the baseline constant"
    assert "set gate.metric to one that it has" in broken.detail
    assert "gate.must_beat" in broken.detail
