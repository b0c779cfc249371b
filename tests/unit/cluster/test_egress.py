"""Prices of traffic that leaves a site: the list, which row holds, and that what nobody knows is told everywhere."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from hetplanner.cli.planning.pareto import _egress_text
from hetplanner.cli.planning.plan_output import price_text as price_line
from hetplanner.cluster.edits import price_site
from hetplanner.cluster.egress import INTERNET, SAME_REGION, STATED, EgressTable, egress_rows, price_list, price_text
from hetplanner.cluster.formats.cluster_files import cluster_from_json, cluster_to_json, load_cluster
from hetplanner.cluster.formats.device_table import csv_of_inventory, read_inventory
from hetplanner.cluster.model import Site
from hetplanner.cost.bounds.lower_bounds import bound_cost
from hetplanner.cost.estimate import CostModel, estimate_plan
from hetplanner.errors import InvalidInput
from hetplanner.plan.estimate import Estimate, left_out_text
from hetplanner.planners.step_time.pareto import ParetoFront
from hetplanner.plots.data.curves import left_out_of
from hetplanner.plots.data.search.fronts import front_columns
from hetplanner.plots.live import ConvergenceCurve, FrontCurve
from hetplanner.plots.notebook.plans.searches import convergence
from hetplanner.ui.plan.models.kept import comparison
from hetplanner.ui.shell.models.texts import dollars_text, left_out_lines
from tests.support.plans.factories import chain_plan, sites_cluster

SAMPLES = Path(__file__).parents[3] / "sample_clusters"
ON_AWS = ("aws_10_regions", "dtfm_4_regional", "dtfm_5_worldwide")


def plan_over(*payers):
    """A stage at each site, one device each."""
    cluster = sites_cluster([1] * len(payers))
    sites = tuple(site.replace(**payer) for site, payer in zip(cluster.sites, payers, strict=True))
    cuts = range(2, 2 + 2 * (len(payers) - 1), 2)
    return chain_plan([8], list(cuts), cluster=cluster.replace(sites=sites))


AWS_OHIO = {"provider": "aws", "region": "us-east-2"}
AWS_TOKYO = {"provider": "AWS", "region": "ap-northeast-1"}
OWN = {"egress_usd_per_gb": 0.0}
UNKNOWN: dict[str, str] = {}


# -- the list -------------------------------------------------------------------------------------


def test_every_row_of_the_price_list_has_a_date_and_a_source():
    assert len(price_list()) > 40
    for row in price_list():
        assert re.fullmatch(r"20\d\d(-\d\d(-\d\d)?)?", row.date), row
        assert len(row.source) > 10, row
        assert 0 <= row.usd_per_gb < 1, row
        assert row.provider == row.provider.casefold()
        assert all(row.regions), row
        assert all(row.destinations), row
        assert len(row.destinations) == 1 or not {INTERNET, SAME_REGION} & set(row.destinations), row


def test_no_row_of_the_price_list_is_hidden_by_the_same_one():
    keys = [(row.provider, row.regions, row.destinations) for row in price_list()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize(
    ("sender", "receiver", "usd"),
    [
        (("aws", "us-east-1"), ("aws", "us-east-2"), 0.01),
        (("aws", "us-east-1"), ("aws", "eu-west-1"), 0.02),
        (("aws", "sa-east-1"), ("aws", "eu-west-1"), 0.138),
        (("aws", "us-east-1"), ("aws", "us-east-1"), 0.02),
        (("aws", "us-east-1"), ("gcp", "us-east1"), 0.09),
        (("aws", "us-east-1"), (None, None), 0.09),
        (("gcp", "us-east1"), ("gcp", "europe-west4"), 0.08),
        (("gcp", "us-east1"), ("gcp", "us-west1"), 0.02),
        (("gcp", "asia-east1"), ("gcp", "australia-southeast1"), 0.15),
        (("azure", "eastus"), ("azure", "westeurope"), 0.05),
        (("azure", "westeurope"), ("azure", "uksouth"), 0.02),
        (("coreweave", None), ("aws", "us-east-1"), 0.0),
        (("coreweave", None), ("coreweave", None), 0.0),
        (("aws", "us-east-1"), ("aws", None), None),
        (("aws", None), ("aws", "us-east-1"), None),
        (("aws", "mars-1"), ("aws", "us-east-1"), None),
        (("a garage", "left"), ("aws", "us-east-1"), None),
        ((None, "us-east-1"), ("aws", "us-east-1"), None),
    ],
)
def test_a_price_depends_on_both_ends(sender, receiver, usd):
    cluster = sites_cluster([1, 1])
    ends = (dict(zip(("provider", "region"), end, strict=True)) for end in (sender, receiver))
    sites = tuple(site.replace(**end) for site, end in zip(cluster.sites, ends, strict=True))
    ((price, receivers),) = EgressTable.of(cluster.replace(sites=sites)).prices_from(0)
    assert price.usd_per_gb == usd
    assert receivers.tolist() == [1]
    assert bool(price.source) == bool(price.date) == (usd is not None)


def test_a_price_in_the_cluster_wins_and_zero_is_known():
    plan = plan_over({**AWS_OHIO, "egress_usd_per_gb": 0.5}, OWN, AWS_TOKYO)
    prices = EgressTable.of(plan.problem.cluster)
    assert [(p.usd_per_gb, p.source) for p, _ in prices.prices_from(0)] == [(0.5, STATED)]
    assert [price_text([p for p, _ in prices.prices_from(s)]) for s in range(3)] == [
        "0.5 $/GB",
        "0 $/GB",
        "0.09 to 0.114 $/GB",
    ]


def test_thousands_of_regions_are_priced_at_once():
    sites = [Site(name=f"s{i}", latitude=0, longitude=0, provider="gcp", region=f"us-r{i}") for i in range(2000)]
    cluster = sites_cluster([1]).model_copy(update={"sites": tuple(sites)})
    prices = EgressTable.of(cluster)
    assert set(np.unique(prices.usd_per_gb_CC).tolist()) == {0.01, 0.02}


# -- files ----------------------------------------------------------------------------------------


def test_old_files_have_no_price_and_new_ones_keep_theirs(tmp_path):
    text = cluster_to_json(sites_cluster([1, 1, 1]))
    assert "egress" not in text
    old = cluster_from_json(text)
    assert [site.egress_usd_per_gb for site in old.sites] == [None] * 3
    told = (OWN, AWS_OHIO, {"egress_usd_per_gb": 0.05})
    new = old.replace(sites=tuple(s.replace(**payer) for s, payer in zip(old.sites, told, strict=True)))
    assert cluster_from_json(cluster_to_json(new)) == new
    table = tmp_path / "devices.csv"
    table.write_text(csv_of_inventory(new))
    assert read_inventory(table).sites == new.sites


def test_a_site_is_priced_anew():
    cluster = sites_cluster([1, 1])
    priced = price_site(cluster, "site-0", "aws", "us-east-1", None)
    assert (priced.sites[0].provider, priced.sites[0].region) == ("aws", "us-east-1")
    assert priced.links == cluster.links
    assert price_site(priced, "site-0", "aws", "us-east-1", None) is priced
    with pytest.raises(InvalidInput, match="egress_usd_per_gb"):
        price_site(cluster, "site-0", None, None, -1.0)
    with pytest.raises(InvalidInput, match="there is no 'Atlantis'"):
        price_site(cluster, "Atlantis", None, None, None)


@pytest.mark.parametrize("name", ON_AWS)
def test_plans_over_the_aws_samples_pay_for_their_traffic(name):
    cluster = load_cluster(SAMPLES / f"{name}.json")
    assert all(row["usd_per_gb"] and row["date"] for row in egress_rows(cluster))
    ids = [next(d for d in cluster.device_ids if cluster.site_of(d) is site) for site in cluster.sites]
    plan = chain_plan([8], [2, 4, 6][: len(ids) - 1], cluster=cluster.subset(ids[:4]))
    estimate = estimate_plan(plan)
    assert estimate.egress_usd > 0
    assert estimate.unpriced_egress_bytes == {}
    assert estimate.left_out_text == ""


# -- what nobody knows ----------------------------------------------------------------------------


def test_the_unknown_is_left_out_and_told():
    estimate = estimate_plan(plan_over(UNKNOWN, AWS_OHIO))
    assert set(estimate.unpriced_egress_bytes) == {"site-0"}
    assert estimate.unpriced_egress_bytes["site-0"] > 0
    assert estimate.egress_usd > 0
    assert estimate.left_out_text.startswith("without egress of site-0 (")
    assert estimate.left_out_text in price_line(estimate, "tokens")
    assert "of it egress" in dollars_text(estimate)
    assert "see below" in dollars_text(estimate)
    assert estimate.left_out_text in left_out_lines(estimate)[0]


def test_free_traffic_is_known():
    estimate = estimate_plan(plan_over(OWN, OWN))
    assert (estimate.egress_usd, estimate.unpriced_egress_bytes, estimate.left_out_text) == (0.0, {}, "")
    assert "0% of it egress" in price_line(estimate, "tokens")


def test_wholly_unknown_traffic_is_no_share_of_zero():
    line = price_line(estimate_plan(plan_over(UNKNOWN, UNKNOWN)), "tokens")
    assert "0%" not in line
    assert "without egress of site-0, site-1 (" in line


def test_only_some_sites_are_named():
    text = left_out_text({f"s{i}": 1e9 * (i + 1) for i in range(6)})
    assert text == "without egress of s5, s4, s3 and 3 more sites (21 GB a step, no price known)"
    assert left_out_text({}) == ""


def test_an_estimate_of_an_older_version_says_so():
    data = estimate_plan(plan_over(UNKNOWN, UNKNOWN)).model_dump(mode="json")
    del data["unpriced_egress_bytes"]
    old = Estimate.model_validate(data)
    assert "an older version wrote this" in old.left_out_text
    assert "an older version wrote this" in price_line(old, "tokens")


def test_a_front_and_a_comparison_tell_it():
    plan = plan_over(UNKNOWN, AWS_OHIO)
    estimated = plan.replace(estimate=estimate_plan(plan))
    front = ParetoFront(plan.problem, (estimated,), 0.1, 0.1, 1, 1.0, 0)
    assert set(front.unpriced_egress_bytes) == {"site-0"}
    assert set(front.to_data()["unpriced_egress_bytes"]) == {"site-0"}
    assert {row["from"] for row in front.to_data()["egress_prices"]} == {"site-0", "site-1"}
    assert front_columns(front.to_rows())["left_out"] == [estimated.estimate.left_out_text]
    rows = {metric.name: metric.texts for metric in comparison({"a": estimated, "b": estimated})}
    assert rows["dollars leave out"] == (estimated.estimate.left_out_text,) * 2
    priced = plan_over(OWN, AWS_OHIO)
    whole = priced.replace(estimate=estimate_plan(priced))
    assert "dollars leave out" not in {metric.name for metric in comparison({"a": whole, "b": whole})}


@pytest.mark.parametrize(
    ("payers", "is_whole"),
    [([UNKNOWN, AWS_OHIO], False), ([UNKNOWN, UNKNOWN], False), ([AWS_TOKYO, AWS_OHIO], True), ([UNKNOWN], True)],
)
def test_axes_in_dollars_tell_it(payers, is_whole):
    """One site sends nothing to another."""
    plan = plan_over(*payers)
    plan = plan.replace(problem=plan.problem.replace(objective="cost"), estimate=estimate_plan(plan))
    words = "" if is_whole else ", without egress at unknown prices"
    searched = SimpleNamespace(events=[{"seconds": 1.0, "evaluations": 9, "best": 2.0, "mean": 3.0}], plan=plan)
    assert convergence(searched).opts.get("plot").kwargs["ylabel"] == f"objective ($ per million tokens{words})"
    left_out = left_out_of("cost", plan.problem.cluster)
    curve, front = ConvergenceCurve(), FrontCurve()
    curve.update(searched.events, unit="$ per million tokens", left_out=left_out)
    assert curve.figure.yaxis[0].axis_label == f"objective ($ per million tokens{words})"
    front.update([(1.0, 2.0)], left_out=left_out)
    assert front.figure.yaxis[0].axis_label == f"$ per million tokens{words}"
    assert left_out_of("step-time", plan.problem.cluster) == ""


@pytest.mark.parametrize(
    ("share", "unpriced", "text"),
    [(0.25, {}, "25%"), (0.25, {"a": 1.0}, "25% + ?"), (0.0, {"a": 1.0}, "?"), (0.0, {}, "0%"), (None, {}, "–")],
)
def test_a_share_of_egress_in_the_table_of_a_front(share, unpriced, text):
    assert _egress_text(share, unpriced) == text


def test_the_bound_takes_the_least_that_two_sites_pay_each_other():
    def bound(*payers):
        problem = plan_over(*payers).problem
        constraints = problem.constraints.replace(stages=2, replicas=1)
        return bound_cost(CostModel.of(problem.replace(constraints=constraints)).tables)

    free = bound(OWN, OWN)
    assert bound(UNKNOWN, UNKNOWN) == free
    assert bound(AWS_OHIO, OWN) > free
    assert bound(AWS_OHIO, AWS_TOKYO) > bound(AWS_OHIO, AWS_OHIO) > free
    assert bound(AWS_OHIO, AWS_TOKYO, OWN) < bound(AWS_OHIO, AWS_TOKYO)


def test_the_command_line_prints_prices_with_their_source():
    from hetplanner.cli.app import app

    sample = str(SAMPLES / "dtfm_4_regional.json")
    text = CliRunner().invoke(app, ["cluster", "show", sample]).stdout
    assert "0.01 to 0.02 $/GB" in text
    data = json.loads(CliRunner().invoke(app, ["cluster", "show", sample, "--json"]).stdout)
    rows = [row for row in data["egress_prices"] if row["from"] == "Virginia"]
    assert {(row["usd_per_gb"], tuple(row["to"])) for row in rows} == {
        (0.01, ("Ohio",)),
        (0.02, ("Oregon", "California")),
    }
    assert all(row["source"] and row["date"] for row in rows)
    assert "unknown" in CliRunner().invoke(app, ["cluster", "show", str(SAMPLES / "lab_2_sites_4.json")]).stdout
