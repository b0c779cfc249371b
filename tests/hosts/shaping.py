"""How fast an interface sends: a token bucket (tbf) of tc.

tc counts frames: of the 1514 bytes of a full one TCP carries 1448, so that a program sees 95.6 % of a rate. Measured on
two cores, one stream, 10 Mbit/s to 1 Gbit/s (shares of the rate, frames counted):

* The burst is what an idle link sends at once. A message after a pause takes `burst / rate` less than its bytes say: of
  200 kB at 200 Mbit/s (8.4 ms) a burst of 4 ms saves 3.2 ms, one of 1 ms 0.7 ms. Too small a burst loses what a late
  timer does not make good: with 0.1 ms 1 Gbit/s carries 44 to 63 %, with 1 ms 95 to 99 %. Hence 1 ms, and two frames at
  least (at 10 Mbit/s 2.4 ms: with one frame tbf would hold back every second segment).
* The queue of a sender's own interface must hold more than what the kernel hands it at once, two segments of 64 kB for
  every connection. 0.1 s is 125 kB at 10 Mbit/s: 6 to 13 packets of 3 MB were dropped with cubic, 213 to 332 with bbr.
  With the 1000 frames of a usual network card nothing is dropped, and the sender's TCP (its small queues) keeps the
  queue short by itself. Where packets come from elsewhere (a router, a port of a switch) 0.1 s is a usual router's, and
  cubic fills it.
* cubic carries 99 to 100 % at every rate, bbr (some systems' default) 91 to 99 %. A new namespace may not take cubic as
  its default where the machine has not; a route may (`congctl`).
* Without netem there is no delay: a round trip takes 0.05 to 0.2 ms, mostly that of waking a process.
"""

from hosts.netns import command

FRAME_BYTES = 1514
"""What tc counts of a full packet of Ethernet: 1500 of IP, 14 of its header."""
PAYLOAD_BYTES = 1448
"""What TCP carries in it: less 20 of IP, 20 of TCP and 12 of TCP's time stamps."""
BURST_S = 1e-3
QUEUE_S = 0.1
QUEUE_FRAMES = 1000


def limit(namespace: str, interface: str, rate_bits: float | None, *, own: bool) -> None:
    """Limits what leaves an interface to so many bits/s of frames; None: no limit.

    `own`: the senders are on this machine, so that their TCP sees the queue; else packets come from elsewhere.
    """
    base = ("ip", "netns", "exec", namespace, "tc", "qdisc", "replace", "dev", interface, "root")
    if rate_bits is None:
        command(*base, "pfifo_fast")
        return
    rate = rate_bits / 8
    burst = max(2 * FRAME_BYTES, rate * BURST_S)
    queue = burst + max(rate * QUEUE_S, QUEUE_FRAMES * FRAME_BYTES if own else 0)
    command(*base, "tbf", "rate", f"{rate_bits:.0f}bit", "burst", f"{burst:.0f}", "limit", f"{queue:.0f}")
