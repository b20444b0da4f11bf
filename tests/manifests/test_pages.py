"""The pages beside the manifests are whole: every pain has its row, every link leads somewhere."""

import re
import shutil

import pytest

from cluster_manifests import COMPONENTS, K8S, ROOT, build, needs_kubectl

PAGES = sorted(K8S.glob("*.md"))
PATCHES = [
    patch for page in PAGES
    for patch in re.findall(r"^```\n(  - target: .+?)^```", page.read_text(), re.M | re.S)
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.M)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings
            }


def test_every_pain_is_answered_or_named():
    rows = re.findall(r"^\| (\d+) \| .+ \| (.+) \|$", (K8S / "pains.md").read_text(), re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 26))
    verdicts = ("answered", "built", "partly", "not seen", "not answered")
    assert [number for number, answer in rows if not answer.startswith(verdicts)] == []


def test_tests_and_results_that_the_table_names_exist():
    text = (K8S / "pains.md").read_text()
    named = re.findall(r"`((?:tests|benchmarks)/[\w/.]+)`", text)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_component_is_in_the_readme():
    text = (K8S / "README.md").read_text()
    for component in COMPONENTS:
        assert re.search(rf"`(components/)?{component.name}`", text), component.name


@needs_kubectl
def test_patches_of_the_pages_can_be_built(tmp_path):
    assert len(PATCHES) >= 2
    shutil.copytree(K8S, tmp_path / "k8s")
    overlay = tmp_path / "k8s" / "overlays" / "staging"
    file = overlay / "kustomization.yaml"
    text = file.read_text().replace("components:\n", "components:\n  - ../../components/events\n")
    file.write_text(text + "".join(PATCHES))
    built = str(build(overlay))
    for patch in PATCHES:
        (value,) = re.findall(r"value: \"?([^\"\n]+)\"?$", patch, re.M)
        assert f"'{value}'" in built
