"""The picture of a demo: what it shows, not how it looks."""

from xml.etree import ElementTree as ET

import msgspec
from tests.unit.demo.test_proof import a_good_proof

from holdfast.demo.picture import draw
from holdfast.demo.timeline import Timeline

SVG = "{http://www.w3.org/2000/svg}"


def a_timeline() -> Timeline:
    """Return a short one: a broker that is killed and comes back, one that goes, and a query with two batches."""
    timeline = Timeline()
    timeline.record_event(1.0, "setting up")
    for name in ("broker-a", "broker-b"):
        timeline.begin(name, 2.0)
    timeline.begin("query count", 3.0)
    timeline.batches["query count"] = [5.0, 8.0]
    for second in range(5, 20):
        timeline.sample(second, {"broker-a": second * 10, "broker-b": min(second, 10) * 10}, second * 15)
    timeline.record_event(12.0, "broker-b is gone & forgotten")
    timeline.end("broker-b", 12.0)
    timeline.end("broker-a", 14.0)
    timeline.begin("broker-a", 16.0)
    return timeline


def texts(picture: str) -> list[str]:
    return [str(element.text) for element in ET.fromstring(picture).iter(f"{SVG}text")]


def bars(picture: str) -> list[str]:
    return [str(element.get("fill")) for element in ET.fromstring(picture).iter(f"{SVG}rect")][1:]


def test_it_names_everybody_and_tells_everything():
    """Brokers, queries, events and the proof."""
    said = texts(draw(a_timeline(), a_good_proof()))

    assert {"broker-a", "broker-b", "query count", "setting up", "broker-b is gone & forgotten"} <= {*said}
    assert {"lost", "bytes copied", "query restarts"} <= {*said}
    assert any("the proof holds" in text for text in said)


def test_a_broker_that_died_has_a_gap():
    """In a colour of its own, between two bars of the broker's."""
    first, gap, second, other, query = bars(draw(a_timeline(), a_good_proof()))

    assert first == second
    assert len({first, gap, other, query}) == 4


def test_a_proof_that_does_not_hold_cannot_be_overlooked():
    """In the title and at its line."""
    bad = msgspec.structs.replace(a_good_proof(), copied=17)

    said = " ".join(texts(draw(a_timeline(), bad)))

    assert "THE PROOF DOES NOT HOLD" in said
    assert "WRONG: of messages that are in the logs of brokers twice" in said


def test_a_timeline_of_nothing_can_be_drawn():
    """A demo that failed early has little to show."""
    assert texts(draw(Timeline(), a_good_proof()))


def test_what_ended_ends_once():
    """A broker that is stopped after it died was not up in between."""
    timeline = a_timeline()
    timeline.end("broker-b", 18.0)
    timeline.end("nobody", 18.0)

    assert [(span.start_s, span.end_s) for span in timeline.lanes["broker-b"]] == [(2.0, 12.0)]
    assert timeline.end_s == 19.0
