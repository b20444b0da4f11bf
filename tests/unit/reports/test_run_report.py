import re

import pytest

from perennial.reports.charts import bar_chart, line_chart
from perennial.reports.excerpt import excerpt
from perennial.reports.page import Page
from perennial.reports.run_report import StepPage, stitch

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
    options = {"title": "flights", "summary": "done", "outcome": "passed", "facts": facts} | changes
    return stitch(pages, **options)


def section(html, index):
    return html.partition(f'<section id="step-{index}">')[2].partition("</section>")[0]


def box(html, index):
    flow = html.partition('<ol class="flow">')[2].partition("</ol>")[0]
    return flow.split("<li ")[index]


def test_report_holds_the_content_of_every_page_one_level_down():
    html = report(step(html=page()), step("train_model", html=page(text="10,000 updates")))

    assert "39 expectations met" in section(html, 1)
    assert "10,000 updates" in section(html, 2)
    assert section(html, 1).count("<h3>Facts</h3>") == 1
    assert "<svg" in section(html, 1)
    assert html.count("<h1>") == 1
    assert html.count("<main>") == 1
    assert html.count("<style>") == 1
    assert "&lt;main&gt;" in section(html, 1)


def test_facts_and_times_are_shown():
    html = report(step(seconds=724.0))

    assert "&lt;flights&gt;" in html
    assert "12 min 4 s" in box(html, 1)
    assert "12 min 4 s" in section(html, 1)


def test_flow_links_to_every_section_once():
    html = report(*(step(name) for name in ("a", "b", "a")))

    links = re.findall(r'href="#([^"]+)"', html)
    anchors = re.findall(r'id="([^"]+)"', html)
    assert set(links) == set(anchors)
    assert len(anchors) == len(set(anchors))
    assert [name for name in links if name != "flow"] == ["step-1", "step-2", "step-3"]


def test_bars_are_as_long_as_the_time_taken():
    html = report(step(seconds=50.0), step(seconds=200.0), step(seconds=0.0))

    assert re.findall(r'style="width:([\d.]+)%"', html) == ["25.0", "100.0", "0.0"]


def test_step_that_did_not_run_is_shown_as_such():
    html = report(step(), step("register_model", outcome="neutral", seconds=0.0))

    assert "Did not run" in box(html, 2)
    assert "Did not run" in section(html, 2)
    assert "summary of register_model" in section(html, 2)
    assert "Passed" not in box(html, 2) + section(html, 2)
    assert "Did not run" not in box(html, 1) + section(html, 1)


def test_step_without_page_says_so():
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
def test_page_knows_warnings_but_a_failed_step_has_failed(of_step, of_page, shown):
    html = report(step(outcome=of_step, html=page(of_page)))

    assert shown in box(html, 1)
    assert f"</span> {shown}</span>" in section(html, 1).partition("</h2>")[0]


def test_empty_run_has_a_report():
    assert "<h1>flights</h1>" in report()


def test_equal_runs_are_equal_bytes():
    assert report(step(html=page())) == report(step(html=page()))


@pytest.mark.parametrize(
    ("html", "reason"),
    [
        ("", "not written by Perennial"),
        ("<main><p>hello</p></main>", "not written by Perennial"),
        (page().replace("perennial", "elsewhere", 1), "not written by Perennial"),
        (page().replace("<main>", "<main><script>alert(1)</script>"), "&lt;script&gt;"),
        (page().replace("<main>", '<main><img src="https://example.org/a.png">'), "&lt;img&gt;"),
        (page().replace("<main>", '<main><p onclick="alert(1)">x</p>'), "onclick"),
        (page().replace("<main>", '<main><p style="position:fixed">x</p>'), "style"),
        (page().replace("<main>", '<main><p id="flow">x</p>'), "id"),
        (page().replace("<main>", "<main><a>x</a>"), "&lt;a&gt;"),
        (page().replace("<main>", "<main><!-- x -->"), "comment"),
        (page().replace("<main>", "<main></div>"), "closes nothing"),
        (page().replace("</table>", ""), "closes nothing"),
        (page()[: len(page()) // 2], "not closed"),
        (page().replace("<main>", "<main></main><main>"), "damaged"),
        (page().replace('content="passed"', 'content="splendid"'), "damaged"),
    ],
)
def test_file_that_a_page_never_writes_is_left_out_with_the_reason(html, reason):
    whole = report(step(html=html))

    assert "Its report is left out" in section(whole, 1)
    assert reason in section(whole, 1)
    assert "39 expectations met" not in whole
    assert "<script" not in whole
    assert "summary of validate_data" in section(whole, 1)


@pytest.mark.parametrize("name", ["url(x)", "</main>", "<main>", "on='x'", "<!--", "a & b", '"'])
def test_odd_names_do_not_make_a_page_suspicious(name):
    built = Page(name, outcome="passed", summary=name)
    built.table([name], [[name]], name)
    built.figure(bar_chart({name: 1.0}, x_label=name), name)

    assert excerpt(built.html()).refusal == ""


def test_every_kind_of_block_is_accepted():
    taken = excerpt(page("warned"))

    assert taken.refusal == ""
    assert taken.outcome == "warned"
    assert taken.content in page("warned")
