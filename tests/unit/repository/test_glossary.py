"""The words of the pages: each is defined once, and two figures of one name are of one quantity."""

from xml.etree import ElementTree

import pytest

from hetplanner.cost.estimate import estimate_plan
from hetplanner.simulator.replay import replay_step
from hetplanner.ui.shell.models.glossary import GLOSSARY
from hetplanner.ui.widgets.cards import help_mark
from tests.support.plans.factories import chain_plan, small_cluster


@pytest.mark.parametrize("latency", ["1 ms", "200 ms"])
def test_idle_is_the_same_quantity_estimated_and_simulated(latency):
    plan = chain_plan([8, 8], [5], cluster=small_cluster(5, latency=latency))
    estimated, simulated = estimate_plan(plan).bubble, replay_step(plan).idle
    assert simulated == pytest.approx(estimated, abs=0.05)


@pytest.mark.parametrize("name", GLOSSARY)
def test_every_word_has_a_sentence_and_a_picture_that_can_be_drawn(name):
    term = GLOSSARY[name]
    assert term.sentence.endswith(".")
    if term.bars:
        assert ElementTree.fromstring(term.picture()).tag == "svg"
        assert set(term.marked) <= {kind for bar in term.bars for kind, _ in bar}
    assert term.sentence in help_mark(name).replace("&#x27;", "'")


def test_other_words_have_no_mark():
    assert help_mark("<b>") == ""
