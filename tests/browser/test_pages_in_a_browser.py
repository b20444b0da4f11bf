"""Pages as people meet them: in the dashboard's sandboxed frame, opened from disk, wide, narrow."""

import math
import random

import pytest

from perennial.contracts.gate import Comparison, GateReason, Interval, Measurement, Verdict
from perennial.reports.charts import (
    bar_chart,
    gauge_chart,
    interval_chart,
    line_chart,
)
from perennial.reports.heat_map import heat_map
from perennial.reports.page import Page
from perennial.reports.run_report import StepPage, index_of_runs, stitch
from perennial.reports.verdict_card import RunFindings, verdict_card

SCREENS = [
    pytest.param(width, dark, id=f"{width}-{'dark' if dark else 'light'}")
    for width in (400, 449, 1400)  # a phone, the frame of Kubeflow's dashboard, a desk
    for dark in (False, True)
]

# Smallest contrast of any visible text with what is painted behind it (WCAG 2.2, 1.4.3).
LOWEST_CONTRAST = """
(() => {
  const channels = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = rgb => rgb.slice(0, 3)
    .map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = element => {
    for (; element; element = element.parentElement) {
      const color = channels(getComputedStyle(element).backgroundColor);
      if (color.length < 4 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  let lowest = [99, ''];
  for (const element of document.body.querySelectorAll('*')) {
    const own = [...element.childNodes].filter(node => node.nodeType === 3);
    const text = own.map(node => node.data).join('').trim();
    if (!text || element.closest('title, .hidden')) continue;
    const style = getComputedStyle(element);
    const ink = channels(element.closest('svg') ? style.fill : style.color);
    const [a, b] = [luminance(ink), luminance(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < lowest[0]) lowest = [ratio, text];
  }
  return lowest;
})()
"""


def full_page():
    """Every kind of block, with content that is hostile to layout and to escaping."""
    draw = random.Random(7)
    page = Page(
        "Validate <data>", outcome="warned", summary="One warning & a <script>alert(1)</script>."
    )
    page.values({"rows": 81_000, "a long value": "x" * 300, "share": 0.123456})
    page.heading("Curves")
    page.text("First line\nsecond line " + "word " * 80)
    noisy = [(i, math.exp(-i / 900) + draw.gauss(0, 0.05)) for i in range(10_000)]
    page.figure(
        line_chart(
            {"training": noisy, "validation": noisy[::700]}, x_label="update", y_label="loss"
        ),
        "Loss.",
    )
    page.figure(bar_chart({"a": 0.3, "b" * 90: math.nan}, x_label="psi", threshold=0.2), "Drift.")
    page.figure(interval_chart({"all": (-0.1, 0.2, 0.3)}, x_label="gain"), "Gain.")
    page.figure(gauge_chart({"theory": 0.7, "now": 2.5}, x_label="loss", band=(0.5, 0.9)), "Loss.")
    page.figure(heat_map([[1.0, 0.0], [0.3, 0.9]], x_label="input", y_label="output"), "Map.")
    names = [f"column {i}" for i in range(40)]
    rows = [[draw.random() for _ in names] for _ in range(4)]
    page.table(names, rows, "Wide", ["passed", "warned", "failed", "neutral"])
    page.table(["long"], [["y" * 500]], "Long")
    metrics = ["log_loss", "0.55297", "0.56758", "+0.0118", "+0.0012", "+0.0229"]
    header = ["metric", "challenger", "champion", "improvement", "lower bound", "upper bound"]
    page.table(header, [metrics], "Six columns", ["passed"])
    page.table(["condition", "result"], [["enough independent days", "27 days"]], "Two columns")
    page.folded_table("Folded", ["name", "value"], [["v" * 300, 1.5]])
    page.details("Log", "z" * 2000)
    return page


GAIN = Interval(estimate=0.0118, low=0.0012, high=0.0229)
CARD = verdict_card(
    RunFindings(
        model="flights", status="succeeded", trigger="`perennial monitor`, because of drift",
        verdict=Verdict(
            promote=False, summary="Do not promote.", baselines={}, champion_version="1",
            reasons=(
                GateReason(
                    condition="better than the champion", held=False, detail="",
                    measured=Measurement(
                        quantity="improvement in log_loss", value=0.0118, threshold=0.002,
                        interval=GAIN,
                    ),
                ),
            ),
            comparisons=(
                Comparison(
                    metric="log_loss", challenger=0.553, champion=0.5676, improvement=GAIN,
                    luck=0.0028,
                ),
            ),
            test_rows=26_089, test_blocks=29, performance_reference=(), notes=("a warning " * 9,),
        ),
    )
)  # fmt: skip


def full_index():
    names = ("run", "model", "pipeline", "report")
    rows = [
        ("flights-20260101-120000-ab12", "flights", "drift_monitoring", "a.html"),
        ("m" * 90, "m" * 60, "continuous_training", ""),
    ]
    more = {"card": CARD, "started": "2026", "duration": "1 min 3 s"}
    rows = [dict(zip(names, row, strict=True)) | more for row in rows]
    return index_of_runs(rows, total=500, place="/a/home/of/runs" * 9)


def full_run():
    html = full_page().html()
    steps = [
        StepPage("snapshot_data", "passed", "81,000 rows", 3.0, html),
        StepPage("train_model", "failed", "loss is NaN", 700.0, html),
        StepPage("evaluate_model", "neutral", "did not run", 0.0, None),
    ]
    facts = {"run": "20260101-120000-ab12", "model": "m" * 120}
    return stitch(
        steps, title="flights", card=CARD, facts=facts, links={"All runs": "../index.html"}
    )


DOCUMENTS = [
    pytest.param(lambda: full_page().html(), id="page"),
    pytest.param(full_run, id="run-report"),
    pytest.param(full_index, id="index"),
]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize(("width", "dark"), SCREENS)
def test_document_is_readable_quiet_and_offline(tab, tmp_path, document, width, dark):
    tab.show(width=width, dark=dark)
    tab.open_framed(document(), tmp_path)

    assert tab.requests == []
    assert tab.complaints == []
    assert tab.run("innerWidth") == width
    assert tab.run("document.documentElement.scrollWidth") <= width
    contrast, text = tab.run(LOWEST_CONTRAST)
    assert contrast >= 4.5, text


def test_hostile_text_is_shown_as_it_is(tab, tmp_path):
    tab.show(width=1400, dark=False)
    tab.open_framed(full_page().html(), tmp_path)

    assert tab.run("document.querySelector('h1').innerText") == "Validate <data>"
    assert "<script>alert(1)</script>" in tab.run("document.body.innerText")
    assert tab.run("document.scripts.length") == 0
    assert tab.run("document.querySelector('main p').getClientRects().length") > 0


def test_wide_table_scrolls_inside_itself(tab, tmp_path):
    tab.show(width=700, dark=False)
    tab.open_framed(full_page().html(), tmp_path)

    box = "document.querySelector('.scroll')"
    assert tab.run(f"{box}.scrollWidth") > tab.run(f"{box}.clientWidth")
    assert tab.run(f"{box}.clientWidth") <= 700


def test_many_columns_become_named_values_in_lines_on_a_narrow_screen(tab, tmp_path):
    tab.show(width=400, dark=False)
    tab.open_framed(full_page().html(), tmp_path)

    row = "document.querySelector('table.running tbody tr')"
    tops = f"new Set([...{row}.cells].map(cell => Math.round(cell.getBoundingClientRect().top)))"
    assert tab.run(f"{row}.cells.length") == 41
    assert 10 < tab.run(f"{tops}.size") <= 21, "two or three to a line"
    name = f"getComputedStyle({row}.cells[40], '::before').content"
    assert "column 39" in tab.run(name)


@pytest.mark.parametrize("width", [400, 1280])
def test_a_table_of_names_and_long_words_fits_without_scrolling(tab, tmp_path, width):
    page = Page("Explained", outcome="neutral", summary="Why.")
    rows = [["a name of three words", "SHA-256 " + "0f" * 32], ["source", "/folder" * 20]]
    page.table(["what", "recorded value"], rows, caption="Code", is_named=False)
    tab.show(width=width, dark=False)
    tab.open_framed(page.html(), tmp_path)

    box = "document.querySelector('.scroll')"
    assert tab.run(f"{box}.scrollWidth <= {box}.clientWidth")
    assert tab.run("document.querySelector('caption')") is None
    assert tab.run(f"{box}.getAttribute('aria-label')") == "Code"


def test_colors_follow_the_reader(tab, tmp_path):
    colors = set()
    for dark in (False, True):
        tab.show(width=1400, dark=dark)
        tab.open_framed(full_page().html(), tmp_path)
        line = "getComputedStyle(document.querySelector('svg .s1')).stroke"
        colors.add((tab.run("getComputedStyle(document.body).backgroundColor"), tab.run(line)))

    assert len(colors) == 2
    assert len({paper for paper, _ in colors}) == len({ink for _, ink in colors}) == 2


CROWDED_CHARTS = [
    line_chart(
        {f"series number {k} with a long name": [(i, math.sin(i + k)) for i in range(60)]
         for k in range(18)},
        x_label="update " * 40, y_label="loss " * 40,
        marks={f"mark {k}": 5.0 * k for k in range(14)} | {"the very last of all marks": 59.0},
    ),
    line_chart({"a": [(1e9, 1e9), (1e9 + 9, 1e9 + 9)], "b": []}, x_label="offset", y_label="y"),
    line_chart({"a": [(0, 1), (9e7, 2)]}, x_label="time", y_label="y", x_dates=True),
    bar_chart({"WM" * 19: -1e-9, "b" * 90: 0, "乗客" * 30: -math.inf}, x_label="x", threshold=0.0),
    bar_chart({str(k): 10.0**k for k in range(90)}, x_label="x", threshold=1e30),
    interval_chart({"M" * 40: (-1.234e-9, 0, math.inf), "b": (math.nan,) * 3}, x_label="x"),
    gauge_chart({"a": 1.0, "b": 1.0, "the best constant": 1.01, "e" * 40: 9e9}, x_label="x" * 90),
    gauge_chart({"a": 0.0, "b" * 30: -1e-7, "c": math.nan}, x_label="x", band=(-1e-7, 1e-8)),
    heat_map([[1.0] * 7000] * 3, x_label="x" * 90, y_label="y" * 90),
    heat_map([[0.5]] * 2000, x_label="x", y_label="y"),
    heat_map([[0.5]], x_label="x", y_label="y"),
]  # fmt: skip


# Fonts that people have: a narrow one, and one that is wider and taller than what charts are drawn
# for, as Verdana is wide and Noto Sans is tall. Made from one family by its metrics, so that the
# tests need no further font.
FONTS = {
    "its own": "",
    "narrow": "@font-face{font-family:Tried;src:local('DejaVu Sans Condensed')}",
    "wide": "@font-face{font-family:Tried;src:local('DejaVu Sans');size-adjust:104%;"
    "ascent-override:107%;descent-override:30%}",
}


def in_font(html, font):
    return html.replace("<style>", f"<style>{font}body{{font-family:Tried,sans-serif!important}}")


def load_font(tab, font):
    if font and not tab.run(
        "document.fonts.load('12px Tried').then(found => found.length, () => 0)"
    ):
        pytest.skip("needs the font DejaVu Sans")


@pytest.mark.parametrize("font", FONTS.values(), ids=FONTS)
def test_no_text_of_a_chart_is_cut_off_or_covered(tab, tmp_path, font):
    page = full_page()
    for chart in CROWDED_CHARTS:
        page.figure(chart, "Crowded.")
    tab.show(width=1400, dark=False)
    tab.open_framed(in_font(page.html(), font), tmp_path)
    load_font(tab, font)

    outside = """[...document.querySelectorAll('svg text')].filter(text => {
        const box = text.getBoundingClientRect();
        const canvas = text.ownerSVGElement.getBoundingClientRect();
        return box.left < canvas.left - 1 || box.right > canvas.right + 1
            || box.top < canvas.top - 1 || box.bottom > canvas.bottom + 1;
    }).map(text => text.textContent)"""
    assert tab.run(outside) == []
    overlapping = """[...document.querySelectorAll('svg')].flatMap(svg => {
        const boxes = [...svg.querySelectorAll('text')].map(
            text => [text.textContent, text.getBoundingClientRect()]);
        const meet = (p, q) => p.left < q.right - 1 && q.left < p.right - 1
            && p.top < q.bottom - 3 && q.top < p.bottom - 3;
        return boxes.flatMap(([a, p], index) => boxes.slice(index + 1)
            .filter(([b, q]) => meet(p, q)).map(([b]) => a + ' | ' + b));
    })"""
    assert tab.run(overlapping) == []


# What is wider than the box that shows it.
CUT = """[...document.querySelectorAll('body *')].filter(element =>
    element.scrollWidth > element.clientWidth + 1
    && !['visible', 'clip'].includes(getComputedStyle(element).overflowX)
    && !element.closest('.hidden, thead')
).map(element => element.outerHTML.slice(0, 200))"""
# Words that fit a line and stand on two: their parts have different heights.
BROKEN = """(() => {
    const found = [], range = document.createRange();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const node = walker.currentNode;
        if (node.parentElement.closest('svg, style, .hidden, pre')) continue;
        for (const word of node.data.matchAll(/(?<!\\S)\\S{2,24}(?!\\S)/g)) {
            range.setStart(node, word.index);
            range.setEnd(node, word.index + word[0].length);
            const tops = new Set([...range.getClientRects()].map(box => Math.round(box.top)));
            if (tops.size > 1) found.push(word[0]);
        }
    }
    return found;
})()"""


@pytest.mark.parametrize("font", FONTS.values(), ids=FONTS)
@pytest.mark.parametrize("document", DOCUMENTS)
def test_on_a_narrow_screen_nothing_is_cut_and_no_word_is_broken(tab, tmp_path, document, font):
    tab.show(width=400, dark=False)
    tab.open_framed(in_font(document(), font).replace("<details", "<details open"), tmp_path)
    load_font(tab, font)

    assert tab.run("document.documentElement.scrollWidth") <= 400
    assert tab.run(CUT) == []
    assert tab.run(BROKEN) == []
    letters = """Math.min(99, ...[...document.querySelectorAll('svg')].map(
        svg => 12 * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width))"""
    assert tab.run(letters) >= 9, "text of charts stays readable"


def test_harness_notices_what_is_cut_and_words_that_are_broken(tab, tmp_path):
    tab.show(width=400, dark=False)
    cell = "<td>challenger</td>"
    html = f"<div style='overflow:auto'><table><tr>{cell * 12}</tr></table></div><p style='width:3em;overflow-wrap:anywhere'>challenger</p>"
    tab.open_framed(html, tmp_path)

    assert len(tab.run(CUT)) == 1
    assert tab.run(BROKEN) == ["challenger"]


def test_values_of_charts_show_when_pointed_at(tab, tmp_path):
    tab.show(width=1400, dark=False)
    tab.open_framed(full_page().html(), tmp_path)
    under = """(() => {
        const point = document.querySelector('svg .u'), box = point.getBoundingClientRect();
        point.scrollIntoView({block: 'center'});
        const now = point.getBoundingClientRect();
        const hit = document.elementFromPoint(now.x + now.width / 2, now.y + now.height / 2);
        return hit.querySelector('title')?.textContent;
    })()"""
    assert " at 9,999" in tab.run(under)


def test_flow_of_a_run_report_leads_to_its_steps(tab, tmp_path):
    tab.show(width=1400, dark=False)
    report = tmp_path / "report.html"
    report.write_text(full_run())
    tab.open(report)

    tab.run("document.querySelector('.flow li:nth-child(1) a').click()", in_frame=False)

    step = "document.getElementById('step-1')"
    assert tab.run("location.hash", in_frame=False) == "#step-1"
    assert tab.run(f"{step}.checkVisibility()", in_frame=False), "it was folded"
    assert (
        tab.run(
            "document.querySelector('nav.contents').getBoundingClientRect().top", in_frame=False
        )
        >= 0
    )


def test_a_frame_of_a_run_report_shows_its_page_and_fits(tab, tmp_path):
    tab.show(width=1400, dark=False)
    short = Page("Register model", outcome="passed", summary="Version 1 is champion.")
    short.values({"version": 1})
    short.table(["fact", "value"], [["commit", "abc"]] * 6, "Lineage")
    pages = [StepPage("register_model", "passed", "done", 3.0, short.html())]
    html = stitch(pages, title="t", card=CARD, facts={"run": "1"}).replace(
        "<details", "<details open"
    )
    (tmp_path / "report.html").write_text(html)
    tab.open(tmp_path / "report.html")

    assert tab.run("document.querySelector('h1').innerText") == "Register model"
    room = tab.run("innerHeight") - tab.run(
        "document.querySelector('main').getBoundingClientRect().bottom"
    )
    assert 0 <= room < 200, "neither scrolled nor mostly empty"
    assert tab.complaints == []


@pytest.mark.parametrize(
    "planted",
    [
        '<img src="https://example.org/pixel.png">',
        "<script>document.title = 'ran'</script>",
        '<a target=_top href="https://example.org/">x</a><meta http-equiv=refresh content="0;url=https://example.org/">',
    ],
)
def test_a_hostile_page_in_a_run_report_fetches_and_runs_nothing(tab, tmp_path, planted):
    tab.show(width=1400, dark=False)
    pages = [StepPage("evaluate_model", "passed", "done", 3.0, f"<title>quiet</title>{planted}")]
    html = stitch(pages, title="t", card=CARD, facts={"run": "1"}).replace(
        "<details", "<details open"
    )
    (tmp_path / "report.html").write_text(html)
    tab.open(tmp_path / "report.html")

    assert tab.requests == []
    assert tab.run("document.title") == "quiet"


@pytest.mark.parametrize(
    "planted",
    [
        '<img src="https://example.org/pixel.png">',
        '<link rel="stylesheet" href="https://example.org/style.css">',
        "<script>fetch('https://example.org/')</script>",
        "<style>@import url('https://example.org/style.css')</style>",
        "<p style=\"background:url('https://example.org/pixel.png')\">x</p>",
    ],
)
def test_policy_of_a_page_stops_what_escaping_might_miss(tab, tmp_path, planted):
    tab.show(width=1400, dark=False)
    html = full_page().html()
    tab.open_framed(html.replace("<main>", f"<main>{planted}"), tmp_path)

    assert tab.requests == []
    assert tab.complaints != [], "the browser reports what it refused"


def test_harness_notices_requests_overflow_and_low_contrast(tab, tmp_path):
    tab.show(width=400, dark=False)
    html = (
        "<img src='https://example.org/a.png'><p style='width:900px;color:#999'>wide and pale</p>"
    )
    tab.open_framed(html, tmp_path)

    assert tab.requests == ["https://example.org/a.png"]
    assert tab.run("document.documentElement.scrollWidth") > 400
    assert tab.run(LOWEST_CONTRAST)[0] < 4.5
