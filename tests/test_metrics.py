"""Numbers are exact under threads, bounded in labels, and the same in both forms of export."""

import threading

import pytest

from edge_appliance.metrics import MAX_LABEL_SETS, Counter, Gauge, Histogram, Metrics


def test_counter_loses_nothing_between_threads():
    """An addition from any thread counts."""
    counter = Counter("x_total", "", ["reason"])
    threads = [threading.Thread(target=lambda: [counter.add(1, "a") for _ in range(5_000)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value("a") == 20_000


def test_label_sets_are_bounded():
    """Input that reaches a label cannot grow the export; what is beyond is counted as `other`."""
    counter = Counter("x_total", "", ["route"])
    for number in range(MAX_LABEL_SETS + 10):
        counter.add(1, f"r{number}")
    assert len(counter.samples()) == MAX_LABEL_SETS + 1
    assert counter.value("other") == 10


def test_gauge_is_read_from_its_owner_at_export():
    """A number that changes all the time is asked for, not copied."""
    gauge = Gauge("x", "")
    size = [1]
    gauge.read_from(lambda: size[0])
    size[0] = 7
    assert gauge.samples() == [((), 7)]
    assert gauge.value() == 7


@pytest.mark.parametrize(("share", "bound"), [(0.5, 0.001), (0.9, 0.1), (1.0, 10.0)])
def test_histogram_quantile_is_the_bound_of_its_bucket(share, bound):
    """A quantile is stated no better than it is known: by the upper bound."""
    histogram = Histogram("x_seconds", "")
    for seconds in [0.0005] * 6 + [0.07] * 3 + [99.0]:
        histogram.observe(seconds)
    assert histogram.quantile(share) == bound
    assert histogram.count == 10


def test_histogram_without_observations():
    """Nothing was counted yet: zero, not an error."""
    assert Histogram("x_seconds", "").quantile(0.99) == 0.0


def test_text_export_follows_the_format():
    """Each metric has help and type; label values are escaped; buckets are cumulative and end in +Inf."""
    metrics = Metrics()
    metrics.rejected.add(2, 'a"b\\c\nd')
    metrics.commit_seconds.observe(0.003)
    text = metrics.render()
    assert "# TYPE edge_appliance_rejected_lines_total counter\n" in text
    assert 'edge_appliance_rejected_lines_total{reason="a\\"b\\\\c\\nd"} 2\n' in text
    assert 'edge_appliance_commit_seconds_bucket{le="0.0025"} 0\n' in text
    assert 'edge_appliance_commit_seconds_bucket{le="+Inf"} 1\n' in text
    assert "edge_appliance_commit_seconds_count 1\n" in text
    assert text.endswith("\n")


def test_both_exports_carry_the_same_names():
    """What a script reads in `status --json` it finds in `/metrics`."""
    metrics = Metrics()
    in_text = {line.split()[2] for line in metrics.render().splitlines() if line.startswith("# TYPE")}
    assert in_text == set(metrics.snapshot())


def test_names_say_what_they_count():
    """Counters end in `_total`, and no two metrics share a name."""
    metrics = Metrics().all()
    assert all(metric.name.endswith("_total") == isinstance(metric, Counter) for metric in metrics)
    assert len({metric.name for metric in metrics}) == len(metrics)
