import re
from html.parser import HTMLParser

import pytest

from perennial.reports.charts import line_chart
from perennial.reports.page import Page
from perennial.reports.run_report import StepPage, stitch
from perennial.reports.verdict_card import RunFindings, verdict_card

CHART = line_chart({"loss": [(0, 1.0), (1, 0.5)]}, x_label="update", y_label="loss")


def page(outcome="passed", text="39 expectations met"):
    built = Page("Validate data", outcome=outcome, summary="Fit <to> train on.")
    built.heading("Facts")
    built.text(text)
    built.values({"rows": 3})
    built.table(["a"], [[1]], "numbers", ["warned"])
    built.figure(CHART, "Loss.")
    built.details("log", "<main></main>")
    return built.html()


def step(name="validate_data", outcome="passed", html=None, seconds=41.0):
    return StepPage(name, outcome, f"summary of {name}", seconds, html)


def report(*pages, **changes):
    facts = {"run": "20260101-ab12", "model": "<flights>"}
    card = verdict_card(RunFindings(model="flights", status="succeeded", trigger="by hand"))
    options = {"title": "flights", "card": card, "facts": facts} | changes
    return stitch(pages, **options)


class Frames(HTMLParser):
    """The frames of a document, as a browser reads their attributes."""

    def __init__(self, html):
        super().__init__()
        self.found = []
        self.scripts = 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        if tag == "iframe":
            self.found.append(dict(attrs))


def frames(html):
    return Frames(html).found


def section(html, index):
    return html.split('<section><details class="step ')[index].partition("</section>")[0]


def box(html, index):
    flow = html.partition('<ol class="flow" id="flow">')[2].partition("</ol>")[0]
    return flow.split("<li ")[index]


def test_report_shows_every_page_in_a_sandboxed_frame_as_it_was_written():
    pages = [page(), page(text="10,000 updates")]
    html = report(step(html=pages[0]), step("train_model", html=pages[1]))

    assert [frame["srcdoc"] for frame in frames(html)] == pages
    assert all(frame["sandbox"] is None for frame in frames(html)), "nothing is allowed"
    assert frames(html)[1]["title"] == "Report of train_model"
    assert html.count("<h1>") == 1
    assert html.count("<main>") == 1
    assert html.index('class="card') < html.index("<iframe")


def test_a_frame_is_as_high_as_its_page_needs_up_to_a_limit():
    short = Page("Register model", outcome="passed", summary="Version 1 is champion.")
    short.values({"version": 1})
    heights = [
        int(re.fullmatch(r"height:(\d+)rem", frame["style"])[1])
        for frame in frames(report(step(html=short.html()), step(html=page()), step(html="<p>x")))
    ]

    assert heights[0] < heights[1] <= 60
    assert heights[2] == 40, "a page that does not tell"


def test_facts_and_times_are_shown():
    html = report(step(seconds=724.0))

    assert "&lt;flights&gt;" in html
    assert "12 min 4 s" in box(html, 1)
    assert "12 min 4 s" in section(html, 1).partition("</summary>")[0]


def test_contents_of_wide_and_narrow_screens_link_to_the_verdict_and_to_every_step():
    html = report(*(step(name) for name in ("a", "b", "a")))

    links = re.findall(r'href="#([^"]+)"', html)
    anchors = re.findall(r' id="([^"]+)"', html)
    assert len(anchors) == len(set(anchors))
    assert links == ["verdict", "step-1", "step-2", "step-3"] * 2
    assert set(links) <= set(anchors)


def test_steps_are_folded_except_those_that_failed():
    html = report(step(), step("train_model", outcome="failed"), step("evaluate_model"))

    assert re.findall(r'<details class="step \w+"( open)?>', html) == ["", " open", ""]


def test_bars_are_as_long_as_the_time_taken():
    html = report(step(seconds=50.0), step(seconds=200.0), step(seconds=0.0))

    assert re.findall(r'style="width:([\d.]+)%"', html) == ["25.0", "100.0", "0.0"] * 2


def test_step_that_did_not_run_is_shown_as_such():
    html = report(step(), step("register_model", outcome="neutral", seconds=0.0))

    assert "Did not run" in box(html, 2)
    assert "Did not run" in section(html, 2)
    assert "summary of register_model" in section(html, 2)
    assert "Passed" not in box(html, 2) + section(html, 2)
    assert "Did not run" not in box(html, 1) + section(html, 1)


def test_step_without_page_reports_it():
    assert "No report." in section(report(step(outcome="failed")), 1)


@pytest.mark.parametrize(
    ("of_step", "of_page", "shown"),
    [
        ("passed", "passed", "Passed"),
        ("passed", "warned", "Warning"),
        ("passed", "neutral", "For information"),
        ("failed", "passed", "Failed"),
        ("failed", "warned", "Failed"),
        ("neutral", "passed", "Passed"),
    ],
)
def test_the_page_shows_warnings_but_a_failed_step_has_failed(of_step, of_page, shown):
    html = report(step(outcome=of_step, html=page(of_page)))

    assert shown in box(html, 1)
    assert f"</span> {shown}</span>" in section(html, 1).partition("</summary>")[0]


def test_empty_run_has_a_report():
    assert "<h1>flights</h1>" in report()


def test_equal_runs_are_equal_bytes():
    assert report(step(html=page())) == report(step(html=page()))


@pytest.mark.parametrize(
    "html",
    [
        "",
        "</iframe></section><script>alert(1)</script>",
        '"><script>alert(1)</script>',
        "&quot;><script>alert(1)</script>",
        page().replace("<main>", "<main><script>alert(1)</script>"),
        page().replace('content="passed"', 'content="splendid"'),
        page()[: len(page()) // 2],
    ],
)
def test_whatever_a_file_contains_stays_in_its_frame(html):
    whole = report(step(html=html))

    (frame,) = frames(whole)
    assert frame["srcdoc"] == html
    assert frame["sandbox"] is None
    assert Frames(whole).scripts == 0
    assert "Passed" in box(whole, 1)


def test_commands_on_the_card_are_code_and_everything_else_is_escaped():
    found = RunFindings(
        model="flights", status="failed", trigger="by hand, `perennial run`", step="train_model",
        error="`a <b>` is odd", go_on="see `perennial logs`",
    )  # fmt: skip
    html = report(step(html=page()), card=verdict_card(found))
    for command in ("perennial run", "perennial logs", "a &lt;b&gt;"):
        assert f"<code>{command}</code>" in html
    assert "`" not in re.search(r'<section class="card.*?</section>', html, re.DOTALL)[0]
