"""SVG check: only plain drawings that neither run nor fetch anything enter a page."""

from xml.etree import ElementTree

SVG_ELEMENTS = frozenset(
    {"svg", "g", "title", "desc", "text", "tspan", "path", "line", "polyline", "polygon", "rect",
     "circle", "ellipse", "image"}
)  # fmt: skip
_NAMESPACE = "{http://www.w3.org/2000/svg}"


def checked_svg(svg: str) -> str:
    """The drawing, unchanged.

    Raises:
        ValueError: it is not one well-formed `<svg>` of plain shapes and text, or it refers to
            something outside of itself.
    """
    if "<!" in svg or "<?" in svg:
        raise ValueError("a figure must be a bare <svg> without declarations or comments")
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"a figure must be one well-formed <svg>: {error}") from error
    if root.tag.removeprefix(_NAMESPACE) != "svg":
        raise ValueError(f"a figure must be an <svg>, not <{root.tag}>")
    for element in root.iter():
        _check_element(element)
    return svg


def is_forbidden(attribute: str, value: str) -> bool:
    """Whether an attribute could run something or refer to something outside of the page."""
    if attribute == "aria-label":  # only ever read aloud, and names of columns may be odd
        return False
    if attribute.startswith("on") or "url(" in value.lower():
        return True
    is_picture = attribute == "href" and value.startswith("data:image/png;base64,")
    return attribute in {"href", "src", "srcset", "xlink:href"} and not is_picture


def _check_element(element: ElementTree.Element) -> None:
    name = str(element.tag).removeprefix(_NAMESPACE)
    if name not in SVG_ELEMENTS:
        raise ValueError(f"a figure may not contain <{name}>; allowed: {sorted(SVG_ELEMENTS)}")
    for attribute, value in element.attrib.items():
        local = attribute.rpartition("}")[2].lower()
        if is_forbidden(local, value) or local in {"id", "style"}:
            raise ValueError(f"a figure may not have {attribute}={value[:40]!r} on <{name}>")
