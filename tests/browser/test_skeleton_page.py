"""The page of the sanity checks in a browser: quiet, readable wide and narrow, folded right."""

import math

import pytest

from perennial.check_skeleton.report import EXAMPLES, build_page, make_preview
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.tasks.image_classification import ImageClassification
from workshop import Workshop


def result(check, outcome, **fields):
    values = {
        "measured": f"{check} is 0.4213 of 0.9",
        "expected": "at least 0.9",
        "source": "x" * 90,
    }
    return CheckResult(check=check, outcome=outcome, **values | fields)


CURVES = {"2 examples": [[s, math.exp(-s / 9)] for s in range(60)], "32 examples": [[0, None]]}
PATHS = {f"example {k}": [[s, math.sin(s / (k + 3))] for s in range(50)] for k in range(6)}
MATRIX = [
    [math.exp(column - row) if column <= row else 0.0 for column in range(64)] for row in range(64)
]
RESULTS = (
    result("overfit_one_batch", "failed", hint="look at the model " * 9, evidence={"curves": CURVES}),
    result("input_independent_baseline", "warned", hint="raise skeleton.sample_rows"),
    result("predictions", "failed", hint="scale back", waived="scored downstream " * 6),
    result("labels", "passed", waived="noisy"),
    result("augmentation", "skipped", severity="off", hint="switched off in the contract"),
    result("initial_loss", "passed", evidence={"initial_loss": 2.4, "theory": 2.3026}),
    result("initial_bias", "passed", evidence={"best_constant": 2.3}),
    result("reproducibility", "passed", evidence={"prediction_paths": PATHS}),
    result("future_independence", "passed", evidence={"dependencies": MATRIX}),
)  # fmt: skip


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workshop")
    seen = make_preview(Workshop(folder).subject(ImageClassification, "digits"))
    found = SkeletonReport(results=RESULTS, baselines={"constant": {"accuracy": 0.1}})
    return build_page(found, seen, ("no linear baseline: too wide",), 0.2).html()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_is_quiet_and_fits(tab, tmp_path, html, width, dark):
    tab.show(width=width, dark=dark)
    tab.open_framed(html, tmp_path)

    assert tab.requests == []
    assert tab.complaints == []
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.querySelectorAll('figure').length") == 5
    assert tab.run("document.querySelectorAll('svg image').length") == EXAMPLES


def test_verdict_and_worst_advice_are_on_the_first_screen(tab, tmp_path, html):
    for width in (400, 1280):
        tab.show(width=width, dark=False)
        tab.open_framed(html, tmp_path)
        bottom = "document.querySelector('tr.failed').getBoundingClientRect().bottom"
        assert tab.run(bottom) < 900
        assert tab.run("document.querySelector('header p').innerText").startswith("Training would")
        advice = "document.querySelector('.scroll')"
        assert tab.run(f"{advice}.scrollWidth <= {advice}.clientWidth")


def test_what_passed_unfolds(tab, tmp_path, html):
    tab.show(width=1280, dark=False)
    tab.open_framed(html, tmp_path)
    is_seen = "document.querySelector('details table').checkVisibility()"

    assert not tab.run(is_seen)
    tab.run("document.querySelector('summary').click()")
    assert tab.run(is_seen)


def test_no_text_of_a_figure_is_cut_off(tab, tmp_path, html):
    tab.show(width=1280, dark=False)
    tab.open_framed(html, tmp_path)
    outside = """[...document.querySelectorAll('svg text')].filter(text => {
        const box = text.getBoundingClientRect();
        const canvas = text.ownerSVGElement.getBoundingClientRect();
        return box.left < canvas.left - 1 || box.right > canvas.right + 1
            || box.top < canvas.top - 1 || box.bottom > canvas.bottom + 1;
    }).map(text => text.textContent)"""
    assert tab.run(outside) == []
