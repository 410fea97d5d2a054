"""Topic templates, matching and the origin cache."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.client import topic_matches_sub

from edge_appliance.core import route as route_module
from edge_appliance.core.route import MAX_FILTER_BYTES, Route, RouteSettings, RouteTable, parse_template


def table(*templates: str) -> RouteTable:
    """Routes with these templates, each into a database named after its place."""
    return RouteTable(Route(RouteSettings(template, f"db{index}")) for index, template in enumerate(templates))


@pytest.mark.parametrize(
    ("template", "subscribed", "captures"),
    [
        pytest.param("plants/{site}/+/{device}/lp", "plants/+/+/+/lp", ("device", "site"), id="captures"),
        pytest.param("a/b", "a/b", (), id="literal"),
        pytest.param("/a/b", "/a/b", (), id="first-level-empty"),
        pytest.param("/", "/", (), id="two-empty-levels"),
        pytest.param("#", "#", (), id="everything"),
        pytest.param("a/{x}/#", "a/+/#", ("x",), id="rest"),
        pytest.param("x/{a}/x/{b}/x", "x/+/x/+/x", ("a", "b"), id="equal-literals"),
        pytest.param("$share/pool/a/{x}", "$share/pool/a/+", ("x",), id="shared"),
        pytest.param("$SYS/broker/#", "$SYS/broker/#", (), id="system-topics"),
        pytest.param("wörk/{straße}", "wörk/+", ("straße",), id="not-ascii"),
    ],
)
def test_template_gives_filter_and_captures(template: str, subscribed: str, captures: tuple[str, ...]) -> None:
    """A capture subscribes as `+` and names a tag; everything else is subscribed as written."""
    route = Route(RouteSettings(template, "db"))
    assert (subscribed, captures) == (route.filter, route.captures)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        pytest.param("", "must not be empty", id="empty"),
        pytest.param("foo/#/baz", "# must be the last level", id="hash-in-the-middle"),
        pytest.param("foo/a#", "# must be the last level", id="hash-not-alone"),
        pytest.param("foo/a+/b", "must fill its level alone", id="plus-not-alone"),
        pytest.param("a/{x}/{x}", "{x} is used twice", id="duplicate-capture"),
        pytest.param("a/{}", "needs a tag name", id="capture-without-name"),
        pytest.param("a/{x}y", "must fill its level alone", id="capture-not-alone"),
        pytest.param("a/{x", "must fill its level alone", id="capture-not-closed"),
        pytest.param("a/}x{", "must fill its level alone", id="braces-reversed"),
        pytest.param("a/{{x}}", "must fill its level alone", id="braces-doubled"),
        pytest.param("a/{x+}", "must not contain + or #", id="wildcard-in-name"),
        pytest.param("a/{time}", "reserved", id="time"),
        pytest.param("a/{time_ns}", "reserved", id="time-ns"),
        pytest.param("a/{_edge_id}", "reserved", id="own-prefix"),
        pytest.param("a/\0", "NUL", id="nul"),
        pytest.param("a/\ud800", "UTF-8", id="lone-surrogate"),
        pytest.param("ä" * (MAX_FILTER_BYTES // 2 + 1), "longer than", id="too-long-in-bytes"),
        pytest.param("$share/pool", "$share/<group>/<topic>", id="shared-without-topic"),
        pytest.param("$share/pool/", "$share/<group>/<topic>", id="shared-with-empty-topic"),
        pytest.param("$share//a", "group", id="shared-without-group"),
        pytest.param("$share/+/a", "group", id="shared-with-wildcard-group"),
    ],
)
def test_template_with_a_fault_is_refused(template: str, message: str) -> None:
    """A bad template raises ValueError with a sentence that says what is wrong."""
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_template(template)


def test_longest_filter_is_accepted() -> None:
    """A filter may have as many bytes as the protocol can say."""
    assert len(parse_template("a" * MAX_FILTER_BYTES).filter) == MAX_FILTER_BYTES


def test_tags_come_sorted_from_captured_levels() -> None:
    """Captured levels become tags sorted by key, next to what the route settings say."""
    settings = RouteSettings("plants/{site}/+/{device}/lp", "edge", "ms", min_time_ns=5, max_future_ns=7)
    origin = RouteTable([Route(settings)]).match("plants/k2/hall/press-04/lp")
    assert origin is not None
    assert origin.tags == (("device", "press-04"), ("site", "k2"))
    assert (
        origin.database,
        origin.precision,
        origin.source,
        origin.min_time_ns,
        origin.max_future_ns,
    ) == ("edge", "ms", "mqtt", 5, 7)
    assert (origin.label, origin.route) == ("plants/k2/hall/press-04/lp", "plants/{site}/+/{device}/lp")


def test_empty_captured_level_gives_no_tag() -> None:
    """`a//c` matches `a/{x}/{y}`, with y only: an empty tag value does not exist."""
    origin = table("a/{x}/{y}").match("a//c")
    assert origin is not None
    assert origin.tags == (("y", "c"),)


def test_shared_group_is_no_part_of_the_topic() -> None:
    """A shared subscription matches topics by what stands behind its group."""
    origin = table("$share/pool/a/{x}").match("a/b")
    assert origin is not None
    assert origin.tags == (("x", "b"),)
    assert table("$share/pool/a/{x}").match("$share/pool/a/b") is None


def test_first_matching_route_wins() -> None:
    """The order of the routes decides, not how exact they are."""
    origin = table("a/+", "a/b").match("a/b")
    assert origin is not None
    assert origin.database == "db0"


@pytest.mark.parametrize(
    ("template", "topic", "is_match"),
    [
        pytest.param("/a/b", "/a/b", True, id="leading-slash"),
        pytest.param("a/b", "/a/b", False, id="leading-slash-counts"),
        pytest.param("{x}/a/b", "/a/b", True, id="empty-first-level-captured"),
        pytest.param("a/#", "a", True, id="hash-matches-the-parent"),
        pytest.param("a/#", "a/b/c", True, id="hash-matches-the-rest"),
        pytest.param("a/#", "ab", False, id="hash-matches-levels-not-prefixes"),
        pytest.param("a/+", "a", False, id="plus-needs-a-level"),
        pytest.param("a/+", "a/", True, id="plus-matches-an-empty-level"),
        pytest.param("a/+", "a/b/c", False, id="plus-is-one-level"),
        pytest.param("#", "$SYS/uptime", False, id="hash-and-dollar"),
        pytest.param("+/uptime", "$SYS/uptime", False, id="plus-and-dollar"),
        pytest.param("{x}/uptime", "$SYS/uptime", False, id="capture-and-dollar"),
        pytest.param("$SYS/#", "$SYS/uptime", True, id="dollar-by-name"),
        pytest.param("a/#", "a/$x", True, id="dollar-in-a-later-level"),
        pytest.param("A/b", "a/b", False, id="case-matters"),
    ],
)
def test_match_follows_the_standard(template: str, topic: str, *, is_match: bool) -> None:
    """Levels are compared one by one; wildcards at the start leave out topics that begin with `$`."""
    assert is_match == (table(template).match(topic) is not None)


LEVELS = st.sampled_from(["", "a", "b", "$a"])


@given(
    st.lists(st.one_of(LEVELS, st.just("+")), min_size=1, max_size=4),
    st.booleans(),
    st.lists(LEVELS, min_size=1, max_size=4),
)
def test_match_agrees_with_the_client_library(levels: list[str], has_rest: bool, topic_levels: list[str]) -> None:
    """For any filter and topic the answer is that of an independent implementation."""
    template = "/".join([*levels, "#"] if has_rest else levels)
    topic = "/".join(topic_levels)
    if template and topic:
        assert topic_matches_sub(template, topic) == (table(template).match(topic) is not None)


def test_same_topic_shares_one_origin() -> None:
    """Work per origin is done once a topic, so the object must be the same; topics without a route are cached too."""
    routes = table("a/{x}")
    assert routes.match("a/1") is routes.match("a/1")
    assert routes.match("a/1") is not routes.match("a/2")
    assert routes.match("b") is None
    assert routes.match("b") is None


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invented topics never hold more than the cap, and matching goes on behind it."""
    monkeypatch.setattr(route_module, "MAX_CACHED_TOPICS", 3)
    routes = table("a/{x}")
    for number in range(10):
        origin = routes.match(f"a/{number}")
        assert origin is not None
        assert (("x", str(number)),) == origin.tags
        assert len(routes._origins) <= 3


def test_cache_of_long_topics_is_bounded() -> None:
    """A topic may have 64 KiB: of such ones fewer are remembered."""
    routes = table("a/{x}")
    for number in range(200):
        assert routes.match(f"a/{number:060000}") is not None
        assert sum(map(len, routes._origins)) <= route_module.MAX_CACHED_BYTES


def test_filters_are_distinct_with_the_highest_qos() -> None:
    """Templates with the same filter are subscribed once, with the best protection one of them asks for."""
    routes = RouteTable(
        [
            Route(RouteSettings("a/{x}", "one", qos=0)),
            Route(RouteSettings("b", "two", qos=0)),
            Route(RouteSettings("a/+", "three", qos=1)),
        ]
    )
    assert routes.filters == [("a/+", 1), ("b", 0)]
