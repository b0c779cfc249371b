"""What tools print about machines, as changes of a cluster: GPUs from `nvidia-smi`, a link from `iperf3 -J`."""

from hetplanner.cluster.formats.gpu_lists import add_host, is_gpu_list, read_gpus
from hetplanner.cluster.formats.iperf import is_iperf, read_iperf, set_measured
from hetplanner.cluster.model import Cluster
from hetplanner.errors import InvalidInput
from hetplanner.reading import reader
from hetplanner.schema import parse_json


@reader("output of nvidia-smi or iperf3", at="place")
def with_tool_output(
    cluster: Cluster | None, text: str, first: str, second: str, place: str = "pasted text"
) -> Cluster | None:
    """The cluster with what a tool printed; None if the text is of neither tool.

    Args:
        cluster: what to edit; None is empty.
        text: of `nvidia-smi` or `iperf3 -J`.
        first: the site of the host whose GPUs these are; for iperf3 where its client ran.
        second: the name of that host, '' takes one; for iperf3 where its server ran.
        place: what to call the text in messages.

    Raises:
        InvalidInput: see `read_gpus`, `add_host`, `read_iperf`, `set_measured`.
    """
    if is_gpu_list(text):
        return add_host(cluster, read_gpus(text, place), first, second, place)
    if text.lstrip("\ufeff \r\n").startswith("{") and '"intervals"' in text and is_iperf(parse_json(text, place)):
        measured = read_iperf(text, place)
        if cluster is None:
            raise InvalidInput(f"{place}: there is no cluster whose link this could be; draw or choose one first")
        return set_measured(cluster, measured, first, second)
    return None
