"""What nvidia-smi and iperf3 print becomes devices and links; what they print otherwise is refused in words."""

import json

import pytest

from hetplanner.cluster.formats.gpu_lists import Gpu, kind_of_gpu
from hetplanner.cluster.formats.tool_output import with_tool_output
from hetplanner.cluster.link_edits import LinkEnds, remove_link
from hetplanner.errors import InvalidInput
from hetplanner.reading import noting
from tests.support.plans.factories import sites_cluster

LIST = """GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5f7c1c4e-0000-1111-2222-333344445555)
  MIG 1g.10gb     Device  0: (UUID: MIG-c6d4f1ef-0000-1111-2222-333344445555)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-5f7c1c4e-0000-1111-2222-333344445556)
GPU 2: NVIDIA T400 4GB (UUID: GPU-5f7c1c4e-0000-1111-2222-333344445557)
"""
QUERY = "index, name, memory.total [MiB]\n0, Tesla V100-SXM2-16GB, 16384 MiB\n1, Tesla V100-SXM2-16GB, 16384 MiB\n"


def iperf(there=2e8, back=None, **asked) -> dict:
    """As iperf 3.16 writes it, cut to what matters."""
    end = {
        "streams": [{"sender": {"min_rtt": 60000, "mean_rtt": 71000}, "receiver": {}}],
        "sum_sent": {"bits_per_second": there * 1.1, "retransmits": 3},
        "sum_received": {"bits_per_second": there},
    }
    if back:
        end["sum_received_bidir_reverse"] = {"bits_per_second": back}
    return {"start": {"test_start": {"protocol": "TCP", "duration": 10, **asked}}, "intervals": [], "end": end}


@pytest.mark.parametrize(
    ("name", "memory", "kind"),
    [
        ("NVIDIA A100-PCIE-40GB", None, "A100-40"),
        ("NVIDIA A100 80GB PCIe", None, "A100-80"),
        ("NVIDIA A100-SXM4", 79.6, "A100-80"),
        ("NVIDIA A100-SXM-64GB", None, None),
        ("NVIDIA H100 80GB HBM3", None, "H100-SXM"),
        ("NVIDIA H100 PCIe", 79.6, "H100-PCIe"),
        ("NVIDIA H100 NVL", None, None),
        ("NVIDIA GeForce RTX 3090", 24.0, "RTX 3090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16.0, None),
        ("NVIDIA A10G", 22.5, "A10G"),
        ("Tesla T4", 15.0, "T4"),
    ],
)
def test_drivers_names_find_their_kinds(name, memory, kind):
    found = kind_of_gpu(Gpu(name, memory))
    assert (found.name if found else None) == kind


def test_gpus_become_devices_of_a_host_and_what_is_unknown_is_said():
    noted: list[str] = []
    with noting(noted.append):
        cluster = with_tool_output(sites_cluster([1, 1]), LIST, "Frankfurt", "box")
    assert [(d.id, d.kind) for d in cluster.devices if d.host == "box"] == [
        ("box-gpu0", "A100-80"),
        ("box-gpu1", "A100-80"),
    ]
    assert round(cluster.site_of("box-gpu0").latitude) == 50
    assert cluster.link("box-gpu0", "box-gpu1").bandwidth == 300e9
    assert any("T400" in text and "1 of 3" in text for text in noted)
    assert any("MIG" in text for text in noted)
    first = with_tool_output(None, QUERY, "Oregon", "")
    assert [d.kind for d in first.devices] == ["V100-16", "V100-16"]
    more = with_tool_output(first, QUERY, "us-west-2", "")  # the same site
    assert (len(more.sites), len(more.hosts), len(more.devices)) == (1, 2, 4)


def test_iperf_sets_the_bandwidth_of_the_link_that_was_tested():
    before = sites_cluster([2, 1])
    after = with_tool_output(before, json.dumps(iperf()), "site-0", "site-1")
    link = after.link("d0", "d2")
    assert (link.bandwidth, link.latency) == (2.5e7, before.link("d0", "d2").latency)
    assert link.when == "bandwidth measured by iperf3, 10 s"
    assert after.link("d2", "d0") == before.link("d2", "d0")
    turned = with_tool_output(before, json.dumps(iperf(reverse=1)), "site-0", "site-1")
    assert (turned.link("d0", "d2"), turned.link("d2", "d0").bandwidth) == (before.link("d0", "d2"), 2.5e7)
    both = with_tool_output(before, json.dumps(iperf(back=8e7)), "h0-0", "h1-0")
    assert (both.link("d0", "d2").bandwidth, both.link("d2", "d0").bandwidth) == (2.5e7, 1e7)
    assert both.link("d1", "d2") == before.link("d1", "d2")


def test_a_link_that_was_not_there_takes_half_the_round_trip():
    gapped = remove_link(sites_cluster([1, 1, 1]), LinkEnds("site", "site-0", "site-1"))
    link = with_tool_output(gapped, json.dumps(iperf()), "site-0", "site-1").link("d1", "d0")
    assert (link.latency, link.bandwidth, link.source) == (0.03, 2.5e7, "measured")


@pytest.mark.parametrize(
    ("text", "first", "second", "words"),
    [
        (LIST, "", "box", "site: must be said"),
        (LIST, "Nowhereville", "box", "is not in the list"),
        (LIST, "site-0", "h0-0", "is there already"),
        (LIST + "Failed to initialize NVML", "site-0", "", "line 5: must be 'GPU 0: name"),
        ("GPU 0: NVIDIA T400 4GB (UUID: GPU-1)", "site-0", "", "is not in the GPU catalog"),
        ("name, memory.total [MiB]", "site-0", "", "lists 0"),
        ("name, memory.total [MiB]\nTesla T4", "site-0", "", "row 2"),
        ('"a,name,b"\nTesla T4', "site-0", "", "row 1: must be the header with a column 'name'"),  # KeyError
        ('name\n"' + "x" * 140_000 + '"', "site-0", "", "cannot be read as a table"),  # csv.Error
        (LIST * 10_000, "site-0", "", "must be at most 2 MB"),
        (json.dumps(iperf() | {"error": "unable to connect"}), "site-0", "site-1", "unable to connect"),
        (json.dumps(iperf(there=0)), "site-0", "site-1", "measure again"),
        (json.dumps(iperf()), "site-0", "Mars", "to: 'Mars' is no site, host or device"),
        (json.dumps(iperf()), "site-0", "h0-0", "must be two places"),
    ],
)
def test_what_cannot_be_taken(text, first, second, words):
    with pytest.raises(InvalidInput) as caught:
        with_tool_output(sites_cluster([1, 1]), text, first, second)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", ["", ",a,b\na,,1\nb,1,", '{"format": "x"}', "id,kind,site\na,T4,b"])
def test_other_text_is_left_to_others(text):
    assert with_tool_output(None, text, "", "") is None
