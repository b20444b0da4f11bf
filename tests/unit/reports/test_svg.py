import pytest

from perennial.reports.page import Page, checked_svg

PICTURE = '<image href="data:image/png;base64,iVBORw0KGgo=" width="8" height="8"/>'


@pytest.mark.parametrize(
    "svg",
    [
        "<svg/>",
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"><path d="M0 0h1"/></svg>',
        "<svg><title>a &lt; b</title><text>乗客</text></svg>",
        '<svg aria-label="url(a)"/>',
        f"<svg>{PICTURE}</svg>",
    ],
)
def test_plain_drawing_passes_unchanged(svg):
    assert checked_svg(svg) == svg


@pytest.mark.parametrize(
    ("svg", "reason"),
    [
        ("", "well-formed"),
        ("just text", "well-formed"),
        ("<svg>", "well-formed"),
        ("<svg/><script/>", "well-formed"),
        ("<p>text</p>", "not <p>"),
        ("<svg><script>alert(1)</script></svg>", "<script>"),
        ("<svg><foreignObject/></svg>", "<foreignObject>"),
        ("<svg><style>*{}</style></svg>", "<style>"),
        ("<svg><a/></svg>", "<a>"),
        ('<svg><x:script xmlns:x="http://www.w3.org/2000/svg"/></svg>', "<script>"),
        ('<svg xmlns:h="http://www.w3.org/1999/xhtml"><h:img/></svg>', "img"),
        ('<svg onload="alert(1)"/>', "onload"),
        ('<svg><image href="https://example.org/a.png"/></svg>', "href"),
        ('<svg><image href="data:text/html;base64,AA=="/></svg>', "href"),
        (
            '<svg xmlns:xlink="http://www.w3.org/1999/xlink"><image xlink:href="a.png"/></svg>',
            "href",
        ),
        ('<svg><path fill="URL(https://example.org/#a)"/></svg>', "URL"),
        ('<svg><path style="fill:red"/></svg>', "style"),
        ('<svg><path id="a"/></svg>', "id"),
        ('<!DOCTYPE svg [<!ENTITY a "b">]><svg>&a;</svg>', "declarations"),
        ("<svg><!-- --></svg>", "declarations"),
        ('<?xml version="1.0"?><svg/>', "declarations"),
    ],
)
def test_drawing_that_could_run_or_fetch_is_refused(svg, reason):
    page = Page("Title", outcome="passed", summary="")

    with pytest.raises(ValueError, match=reason):
        page.figure(svg, "caption")
    assert "<figure>" not in page.html()
