"""How fast an interface sends: a token bucket (tbf) of tc.

tc counts frames: of the 1514 bytes of a full one TCP carries 1448, so that a program sees 95.6 % of a rate. What was
found on two busy cores with one stream of 10 Mbit/s to 1 Gbit/s (in per cent of the rate, frames counted):

* The burst is what an idle link sends at once: a message after a pause arrives `burst / rate` too early. With 1 ms a
  message of 64 kB takes 9 % less than its bytes say at 50 Mbit/s and 33 % less at 200, with 0.3 ms 3 and 6 %.
* What of the burst exceeds one packet makes good that a timer fires late. Kernel timers are 0.05 to 0.1 ms late here:
  0.2 ms suffices, 1 ms carries no more.
* A packet of TCP is up to 64 kB (segmentation offload). One that exceeds the burst is cut into frames by tbf, at a cost
  that a busy machine cannot pay: with a burst of 0.1 to 0.5 ms 1 Gbit/s carries 30 to 70 %. With packets as large as
  the burst 92 to 97 %, for nothing is left to make up for late timers; with packets of 0.1 ms (a frame at least, 12 kB
  at most) and a burst of 0.2 ms more 97 to 100 %, from 10 Mbit/s to 1 Gbit/s. So it is done. Hosts without a limit send
  packets of 12 kB too, for the sake of links behind them.
* The queue of a sender's own interface must hold more than what the kernel hands it at once, two packets for every
  connection. 0.1 s is 125 kB at 10 Mbit/s: of 3 MB 6 to 13 packets were dropped with cubic, 213 to 332 with bbr. With
  the 1000 frames of a usual network card none is, and the sender's TCP (its small queues) keeps the queue short by
  itself. Where packets come from elsewhere (a router, a port of a switch) 0.1 s is a usual router's; cubic fills it.
* cubic carries 99 to 100 %, bbr (some systems' default) 91 to 99 %. A new namespace may not take cubic as its default
  where the machine has not; a route may (`congctl`).
* A sender that waits for a core leaves its link idle, whatever the queue: so busy machines measure low rates.
* Without netem there is no delay: a round trip takes 0.05 to 0.2 ms, mostly that of waking a process.
"""

from tests.support.hosts.netns import command, inside

FRAME_BYTES = 1514
"""What tc counts of a full packet of Ethernet: 1500 of IP, 14 of its header."""
PAYLOAD_BYTES = 1448
"""What TCP carries in it: less 20 of IP, 20 of TCP and 12 of TCP's time stamps."""
PACKET_S, LATE_S = 0.1e-3, 0.2e-3
QUEUE_S, QUEUE_FRAMES = 0.1, 1000
LARGEST_PACKET = 12_000
PORT_BITS = 6
"""Of a sender's port: connections that differ in them have limits of their own."""


def limit(namespace: str, interface: str, rate_bits: float | None, *, own: bool) -> None:
    """Limits what leaves an interface to so many bits/s of frames; None: no limit.

    `own`: the senders are on this machine, so that their TCP sees the queue; else packets come from elsewhere.
    """
    qdisc = ("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", interface, "root")
    if rate_bits is None:
        inside(namespace, "link", "set", interface, "gso_max_size", str(LARGEST_PACKET))
        command(*qdisc, "pfifo_fast")
        return
    rate = rate_bits / 8
    packet = max(FRAME_BYTES, min(rate * PACKET_S, LARGEST_PACKET))
    inside(namespace, "link", "set", interface, "gso_max_size", f"{packet * PAYLOAD_BYTES / FRAME_BYTES:.0f}")
    burst = packet + rate * LATE_S
    queue = burst + max(rate * QUEUE_S, QUEUE_FRAMES * FRAME_BYTES if own else 0)
    command(*qdisc, "tbf", "rate", f"{rate_bits:.0f}bit", "burst", f"{burst:.0f}", "limit", f"{queue:.0f}")


def limit_connections(namespace: str, interface: str, rate_bits: float) -> None:
    """Limits every TCP connection that leaves an interface to so many bits/s of frames, and not their sum.

    So a long path limits them, whose round trip is longer than their windows: without netem there is no such path. A
    connection is known by some bits of its sender's port; two of four have the same ones in 9 of 100 cases.
    """
    tc = ("ip", "netns", "exec", namespace, "tc")
    burst = f"{FRAME_BYTES + rate_bits / 8 * LATE_S:.0f}"
    inside(namespace, "link", "set", interface, "gso_max_size", str(PAYLOAD_BYTES))
    command(*tc, "qdisc", "replace", "dev", interface, "root", "handle", "1:", "htb")
    for value in range(1 << PORT_BITS):
        own = ("rate", f"{rate_bits:.0f}bit", "burst", burst, "cburst", burst)
        command(*tc, "class", "add", "dev", interface, "parent", "1:", "classid", f"1:{value + 1:x}", "htb", *own)
        port = ("match", "ip", "sport", str(value << 1), hex((1 << PORT_BITS) - 1 << 1))
        to = ("flowid", f"1:{value + 1:x}")
        command(*tc, "filter", "add", "dev", interface, "parent", "1:", "protocol", "ip", "u32", *port, *to)
