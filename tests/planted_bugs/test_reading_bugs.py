"""Texts whose telling part never reaches the inputs."""

import pytest

from own_tasks import Next, Praise
from planted import Bug, require_caught
from planted import planted as planted_bug
from workshop import Workshop, results_of

BUGS: list[Bug] = []


def planted(hint):
    return planted_bug(BUGS, "text_coverage", hint, material="reviews", outcome="warned")


@planted("texts are cut")
class FirstWords(Praise):
    """only the first five words are kept"""

    def kept(self, codes):
        return codes[:5]


@planted("beginning of texts is cut")
class LastWords(Praise):
    """the beginning is cut away, in place of the end"""

    def kept(self, codes):
        return codes[-5:]


@planted("vocabulary unknown")
class OtherCase(Praise):
    """the vocabulary is in small letters, the texts in capitals"""

    def fit(self, train):
        super().fit(train)

    def split(self, text):
        return text.upper().split() if self.learned else text.lower().split()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


class Longest(Praise):
    """Cuts the last words of the longest texts."""

    def kept(self, codes):
        return codes[:18]


@pytest.mark.parametrize(
    ("task_type", "material"), [(Praise, "reviews"), (Longest, "reviews"), (Next, "series")]
)
def test_healthy_tasks_are_not_doubted(task_type, material, workshop):
    result = results_of(workshop.subject(task_type, material), "text_coverage")["text_coverage"]
    assert result.outcome in ("passed", "skipped"), (result.measured, result.hint)
