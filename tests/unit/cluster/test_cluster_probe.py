"""Who measures with whom, and what becomes of the numbers."""

from collections import Counter

import pytest
from typer.testing import CliRunner

from hetplanner.cli.app import app
from hetplanner.cluster.formats.cluster_files import save_cluster
from hetplanner.cluster.model import Cluster, Device, Host, Site, SiteLink
from hetplanner.errors import InvalidInput, RunError
from hetplanner.hosts.probe.measuring import _named
from hetplanner.hosts.probe.record import ProbedLink, ProbedTogether, Record, check_record, load_record, save_record
from hetplanner.hosts.probe.result import findings, probed_cluster
from hetplanner.hosts.probe.rounds import matches, rounds
from hetplanner.hosts.probe.streams import rate_of


def sites(*counts: int) -> dict[str, str]:
    return {f"{'abcdefgh'[s]}{i}": "abcdefgh"[s] for s, count in enumerate(counts) for i in range(count)}


@pytest.mark.parametrize("counts", [(1,), (2,), (3, 1), (4, 4), (5, 3, 1), (16, 16, 16, 16)])
@pytest.mark.parametrize("all_pairs", [False, True])
def test_rounds_hold_every_match_once_and_none_disturbs_another(counts: tuple[int, ...], all_pairs: bool) -> None:
    site_of = sites(*counts)
    wanted = matches(site_of, all_pairs=all_pairs)
    assert len({frozenset(one) for one in wanted}) == len(wanted)
    found = rounds(wanted, site_of)
    assert Counter(one for together in found for one in together) == Counter(wanted)
    for together in found:
        hosts = [host for one in together for host in one]
        assert len(set(hosts)) == len(hosts)
        ways = [
            site for one in together for site in {site_of[one.first], site_of[one.second]} if _is_between(one, site_of)
        ]
        assert len(set(ways)) == len(ways)


def _is_between(one: tuple[str, str], site_of: dict[str, str]) -> bool:
    return site_of[one[0]] != site_of[one[1]]


def test_every_host_meets_its_own_site_and_every_other_site() -> None:
    site_of = sites(5, 3)
    met = {frozenset(one) for one in matches(site_of)}
    assert sum(not _is_between(tuple(one), site_of) for one in met) == 10 + 3
    for host, site in site_of.items():
        assert {site_of[other] for one in met if host in one for other in one} == {"a", "b"}, (host, site)
    assert len(matches(site_of, all_pairs=True)) == 10 + 3 + 15


def test_sixty_four_hosts_take_about_as_many_rounds() -> None:
    site_of = sites(16, 16, 16, 16)
    assert len(rounds(matches(site_of), site_of)) <= 70


def test_the_rate_of_a_stream_is_that_of_its_later_part() -> None:
    slow_then_fast = [(i / 10, 10 * i) for i in range(4)] + [(0.3 + i / 10, 30 + 100 * i) for i in range(1, 8)]
    assert rate_of(slow_then_fast, 1.0) == pytest.approx(1000.0)
    assert rate_of([], 1.0) is None
    assert rate_of([(0.0, 5)], 1.0) is None


def cluster() -> Cluster:
    names = ("x", "y")
    return Cluster(
        name="lab",
        sites=tuple(Site(name=name, latitude=0.0, longitude=float(i)) for i, name in enumerate(names)),
        hosts=tuple(Host(id=f"{name}{i}", site=name) for name in names for i in range(2)),
        devices=tuple(Device(id=f"{name}{i}-0", kind="T4", host=f"{name}{i}") for name in names for i in range(2)),
        site_links=tuple(SiteLink(from_site=a, to_site=b, latency=0.001, bandwidth=1e9) for a in names for b in names),
    )


def record(**rates: float) -> Record:
    """Links by `x0_y1=bytes per second`, both ways."""
    links = []
    for pair, rate in rates.items():
        for ends in (pair.split("_"), pair.split("_")[::-1]):
            links.append(
                ProbedLink(
                    from_host=ends[0],
                    to_host=ends[1],
                    latency_s=0.01,
                    latency_spread_s=0.001,
                    bytes_per_s=rate,
                    several_bytes_per_s=rate,
                    streams=4,
                )
            )
    hosts = tuple(host.id for host in cluster().hosts)
    return Record(cluster="lab", hosts=hosts, begun_unix_s=1.7e9, links=tuple(links))


def test_alike_links_become_one_of_sites_and_others_stay_apart() -> None:
    found = probed_cluster(cluster(), record(x0_y0=1e8, x1_y1=1.02e8, x0_x1=2e8), "today")
    assert found.link("x0-0", "y1-0").bandwidth == pytest.approx(1.01e8)
    assert (found.link("x0-0", "x1-0").bandwidth, found.link("x0-0", "x1-0").latency) == (2e8, 0.01)
    assert not found.device_links
    assert {link.source for link in found.site_links if link.from_site != link.to_site} == {"measured"}
    assert "cluster probe" in found.provenance
    found = probed_cluster(found, record(x0_y0=1e8, x1_y1=1e8, x0_y1=3e7), "tomorrow")
    assert found.link("x0-0", "y1-0").bandwidth == 3e7
    assert found.link("x1-0", "y0-0").bandwidth == 1e8
    assert len(found.device_links) == 2
    again = probed_cluster(found, record(x0_y0=1e8, x1_y1=1e8, x0_y1=1e8), "later")
    assert again.link("x0-0", "y1-0").bandwidth == 1e8
    assert not again.device_links


def test_a_shared_card_becomes_its_limit_and_a_shared_way_is_told() -> None:
    together = (
        ProbedTogether(host="x0", way="out", connections=2, one_by_one_bytes_per_s=2e8, together_bytes_per_s=1e8),
        ProbedTogether(host="x1", way="out", connections=2, one_by_one_bytes_per_s=2e8, together_bytes_per_s=1.9e8),
        ProbedTogether(site="y", way="in", connections=2, one_by_one_bytes_per_s=2e8, together_bytes_per_s=1e8),
    )
    told = record(x0_y0=1e8, x0_x1=1e8, x1_y0=1e8).replace(together=together)
    found = probed_cluster(cluster(), told, "today")
    assert [host.nic_out for host in found.hosts] == [1e8, None, None, None]
    said = findings(cluster(), told)
    assert (
        "x0: 2 connections at once carry 800 Mbit/s, one by one 1.6 Gbit/s in all: they share its network card"
        in said[0]
    )
    assert said[1].startswith("site y: 2 connections")
    assert not any("x1: 2" in text for text in said)
    assert any(text.startswith("x0 → y0: bandwidth is 800 Mbit/s, the cluster file says 8 Gbit/s") for text in said)


def test_a_record_of_other_hosts_is_refused(tmp_path) -> None:
    one = record(x0_y0=1e8)
    save_record(one, tmp_path / "r.json")
    assert load_record(tmp_path / "r.json") == one
    with pytest.raises(InvalidInput, match="holds measurements of lab with 4 hosts, not of"):
        check_record(one, cluster().subset(["x0-0", "x1-0"]), "r.json")
    with pytest.raises(InvalidInput, match="lab has no host 'z'"):
        check_record(one.replace(links=(one.links[0].replace(to_host="z"),)), cluster(), "r.json")


def test_devices_are_named_by_kind_where_a_host_has_several() -> None:
    row = {
        "flops_per_s": {"float32": 1e12},
        "efficiency": 0.5,
        "memory_bandwidth_bytes_per_s": 1e11,
        "memory_bytes": 1e10,
    }
    rows = [row | {"name": "Tesla T4"}, row | {"name": "Tesla V100-SXM2-16GB"}]
    devices = [Device(id="v", kind="V100", host="h"), Device(id="t", kind="T4", host="h")]
    assert [(one.device, one.name) for one in _named("h", devices, rows)] == [("v", rows[1]["name"]), ("t", "Tesla T4")]
    with pytest.raises(RunError, match="host h: the cluster has A100 there, and it has Tesla T4, Tesla V100"):
        _named("h", [devices[1], Device(id="a", kind="A100", host="h")], rows)


def test_what_cannot_be_probed_is_refused_before_anything_is_asked(tmp_path) -> None:
    save_cluster(cluster(), tmp_path / "c.json")
    (tmp_path / "hosts.toml").write_text('format = "hetplanner/hosts@1"\n[hosts.x00]\n')
    base = ["cluster", "probe", str(tmp_path / "c.json"), "-o", str(tmp_path / "new.json")]
    for words, said in (
        (["--only", "nics"], "--only: must be all, devices or links, got 'nics'"),
        (["--hosts", str(tmp_path / "hosts.toml")], "hosts.x00: the cluster has no such host; did you mean 'x0'?"),
        (["--resume"], "new.probe.json"),
    ):
        done = CliRunner().invoke(app, base + words)
        assert done.exit_code == 2 or isinstance(done.exception, InvalidInput), done.output
        assert said in str(done.exception), (said, done.exception)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.json", "hosts.toml"]
