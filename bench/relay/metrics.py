"""The metrics: each runs one trial of one peer and returns its raw sample, and lists the figures that are reported.

Each trial starts and stops its own server and relay, so that no trial inherits another's memory, sessions or pipes.
"""
import contextlib
import json
import signal
import subprocess
import time

import accounts
import testbed
from children import dying_with_parent

CONNECT_CONCURRENCY = 16
UDP_SOURCES = 4
UDP_WINDOW = 16
IDLE_CONNECTIONS = 9500  # two descriptors each, within 20,000 per process
DESCRIPTORS = 20000
SPARE_DESCRIPTORS = 200


class Failed(Exception):
    """The trial has no result. The message is the reason."""


class Figure:
    """A number of a sample: its key, its title with the unit, its format, and whether more is better."""

    def __init__(self, key, title, form="{:.2f}", more_is_better=True, main=False):
        self.key, self.title, self.form, self.more_is_better, self.main = key, title, form, more_is_better, main


class Metric:
    udp = False
    loopback = False
    most_blocks = None

    def __init__(self, name, title, figures):
        self.name, self.title, self.figures = name, title, figures

    def refuses(self, peer):
        """The reason why this peer cannot be measured, or None."""
        if self.udp and not peer.udp:
            return "no UDP"
        if self.loopback and not peer.loopback:
            return "not over loopback"
        return None

    def how(self, seconds):
        """A description of the trial, which is printed above the table."""
        raise NotImplementedError

    def trial(self, bed, peer, options):
        raise NotImplementedError

    @contextlib.contextmanager
    def running(self, bed, peer, server):
        """Runs the server and the relay of a trial: ((address, port) for the client, server, relay or None)."""
        path = testbed.Path(self.loopback)
        host, port = peer.address(path)
        target = path.direct if host == path.direct else path.target
        with contextlib.ExitStack() as stack:
            command = [word.replace("TARGET", target) for word in server]
            serving = testbed.Child(path.server, command, bed.scratch, "server", stdout=subprocess.PIPE, text=True)
            stack.callback(serving.stop)
            testbed.wait_bound(serving, testbed.TARGET_PORT, self.udp)
            relay = peer.start(path, bed.scratch, self.udp)
            if relay:
                stack.callback(relay.stop)
            yield (host, str(port)), serving, relay


def load(bed, client_namespace, mode, address, *values, timeout_s):
    """Runs the load program until it exits. Returns the JSON that it printed."""
    command = testbed.inside(client_namespace, bed.load, mode, *address, *map(str, values))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s,
                              preexec_fn=dying_with_parent())
    except subprocess.TimeoutExpired:
        raise Failed(f"the load did not end within {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise Failed(done.stderr.strip()[-200:])
    return json.loads(done.stdout)


def cpu_by(cost, amount, unit):
    """The CPU time of the whole path and of the relay per unit of work. A time that could not be measured is left out."""
    spent = {who: cost[f"{who}_cpu_s"] for who in ("path", "relay")}
    return {f"{who}_cpu_{unit}": seconds / amount for who, seconds in spent.items() if seconds is not None}


class Stream(Metric):
    """Throughput, and CPU seconds per GB of the whole path, because a relay can shift CPU time to sender and receiver."""

    def __init__(self, streams, loopback):
        self.streams, self.loopback = streams, loopback
        where = "over loopback" if loopback else "through namespaces"
        super().__init__(
            f"{'loopback' if loopback else 'stream'}{streams}",
            f"{streams} stream{'s' if streams > 1 else ''} {where}",
            [
                Figure("gbits_per_s", "Gbit/s", main=True),
                Figure("path_cpu_s_per_gb", "whole path, CPU-s/GB", "{:.3f}", more_is_better=False, main=True),
                Figure("relay_cpu_s_per_gb", "relay alone, CPU-s/GB", "{:.3f}", more_is_better=False),
                Figure("ends_cpu_s_per_gb", "both ends, CPU-s/GB", "{:.3f}", more_is_better=False),
            ],
        )

    def how(self, seconds):
        return f"iperf3 -P {self.streams}, {self.whole(seconds)} s."

    @staticmethod
    def whole(seconds):
        """The time in whole seconds, because iperf3 ignores fractions."""
        return max(1, round(seconds))

    def trial(self, bed, peer, options):
        server = ["iperf3", "-s", "-1", "-B", "TARGET", "-p", str(testbed.TARGET_PORT)]
        client = testbed.Path(self.loopback).client
        with self.running(bed, peer, server) as ((host, port), _, relay):
            meter = accounts.Meter(relay, options.baseline_cores)
            command = ["iperf3", "-c", host, "-p", port, "-P", str(self.streams), "-t", str(self.whole(options.seconds)),
                       "-J"]
            try:
                done = subprocess.run(testbed.inside(client, *command), capture_output=True, text=True,
                                      timeout=options.seconds + 20, preexec_fn=dying_with_parent())
            except subprocess.TimeoutExpired:
                raise Failed("iperf3 did not end") from None
            cost = meter.read()
        report = json.loads(done.stdout or "{}")
        if "error" in report or "end" not in report:
            raise Failed(f"iperf3: {report.get('error', 'no report')}")
        received, ends = report["end"]["sum_received"], report["end"]["cpu_utilization_percent"]
        gb = received["bytes"] / 1e9
        if gb == 0:
            raise Failed("nothing arrived")
        sample = {"gbits_per_s": received["bits_per_second"] / 1e9, "gb": gb, **cost}
        sample["ends_cpu_s_per_gb"] = (ends["host_total"] + ends["remote_total"]) / 100 * received["seconds"] / gb
        return sample | cpu_by(cost, gb, "s_per_gb")


class Exchanges(Metric):
    """Requests of 32 bytes, one after the other. The answers have 32 bytes, or a medium size: large enough that a relay may treat
    them as a stream, but too small to gain from its optimisations for streams."""

    def __init__(self, connections, name, title, answer_bytes=32, form="{:.1f}", unit="exchanges"):
        self.connections, self.answer_bytes = connections, answer_bytes
        super().__init__(
            name,
            title,
            [
                Figure("p50_us", "p50, µs", form, more_is_better=False, main=True),
                Figure("p99_us", "p99, µs", form, more_is_better=False, main=True),
                Figure("per_s", f"{unit}/s", "{:,.0f}"),
            ],
        )

    @classmethod
    def small(cls, connections):
        plural = "s" if connections > 1 else ""
        return cls(connections, f"rr{connections}", f"32-byte exchanges, {connections} connection{plural}")

    @classmethod
    def objects(cls, kib):
        title = f"objects of {kib} KiB over one connection"
        return cls(1, f"objects-{kib}k", title, answer_bytes=kib * 1024, form="{:.0f}", unit="objects")

    def how(self, seconds):
        if self.answer_bytes == 32:
            return f"One exchange at a time on each connection, {seconds:g} s, through namespaces."
        size = self.answer_bytes // 1024
        return f"A request of 32 bytes for {size} KiB, one at a time, {seconds:g} s, through namespaces."

    def trial(self, bed, peer, options):
        server = [bed.load, "serve", "TARGET", str(testbed.TARGET_PORT), str(self.answer_bytes)]
        with self.running(bed, peer, server) as (address, _, _relay):
            return load(bed, testbed.CLIENT, "rr", address, self.connections, options.seconds, self.answer_bytes,
                        timeout_s=options.seconds + 20)


class Connections(Metric):
    def __init__(self):
        super().__init__(
            "connect",
            "connections per second",
            [
                Figure("per_s", "connections/s", "{:,.0f}", main=True),
                Figure("path_cpu_us_each", "whole path, CPU-µs each", "{:.0f}", more_is_better=False, main=True),
                Figure("relay_cpu_us_each", "relay alone, CPU-µs each", "{:.0f}", more_is_better=False),
                Figure("p50_us", "p50, µs", "{:.0f}", more_is_better=False),
                Figure("p99_us", "p99, µs", "{:.0f}", more_is_better=False),
                Figure("errors", "failed", "{:.0f}", more_is_better=False),
            ],
        )

    def how(self, seconds):
        return f"Connect, exchange 32 bytes, close; {CONNECT_CONCURRENCY} at a time, {seconds:g} s, through namespaces."

    def trial(self, bed, peer, options):
        with self.running(bed, peer, [bed.load, "serve", "TARGET", str(testbed.TARGET_PORT)]) as (address, _, relay):
            meter = accounts.Meter(relay, options.baseline_cores)
            sample = load(bed, testbed.CLIENT, "connect", address, CONNECT_CONCURRENCY, options.seconds,
                          timeout_s=options.seconds + 20)
            cost = meter.read()
        # The meter includes the load's warm-up, so the CPU time of a connection is cores divided by connections per second.
        return sample | cpu_by(cost, sample["per_s"] * cost["wall_s"] / 1e6, "us_each")


class Idle(Metric):
    """Memory and descriptors of connections that have transferred a few bytes and are idle."""

    most_blocks = 3  # memory hardly varies

    def __init__(self):
        super().__init__(
            "idle",
            "idle connections",
            [
                Figure("pss_kb_each", "kB each (PSS)", "{:.2f}", more_is_better=False, main=True),
                Figure("kernel_kb_each", "kernel, whole path, kB each", "{:.1f}", more_is_better=False),
                Figure("descriptors_each", "descriptors each", "{:.2f}", more_is_better=False),
                Figure("empty_pss_kb", "without connections, kB", "{:,.0f}", more_is_better=False),
                Figure("open", "connections held", "{:,.0f}"),
            ],
        )

    def how(self, seconds):
        return (
            f"{IDLE_CONNECTIONS:,} connections (fewer if a relay needs more than two descriptors for each in one process: "
            f"the limit is {DESCRIPTORS:,}), each with one exchange, then idle. The growth of the relay's process tree, and the "
            "growth of the kernel's slab, stacks and page tables, which includes the sockets of both ends."
        )

    def trial(self, bed, peer, options):
        wanted = min(IDLE_CONNECTIONS, (DESCRIPTORS - SPARE_DESCRIPTORS) // peer.descriptors)
        with self.running(bed, peer, [bed.load, "serve", "TARGET", str(testbed.TARGET_PORT)]) as (address, _, relay):
            # A first connection, so that memory that a relay allocates only once is not counted.
            load(bed, testbed.CLIENT, "rr", address, 1, 0.1, timeout_s=20)
            time.sleep(0.5)
            before = self.usage(relay)
            client = testbed.Child(testbed.CLIENT, [bed.load, "idle", *address, str(wanted)], bed.scratch, "idle",
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                opened = json.loads(client.process.stdout.readline() or "{}")
                if not opened.get("open"):
                    raise Failed(f"no connection: {client.log_end() or opened.get('stopped_by')}")
                time.sleep(1)  # some buffers are freed a moment later
                after = self.usage(relay)
            finally:
                client.stop()
        sample = {**opened, "wanted": wanted, "before": before, "after": after}
        sample["kernel_kb_each"] = (after["kernel_kb"] - before["kernel_kb"]) / opened["open"]
        if relay:
            sample["empty_pss_kb"] = before["pss"]
            for key, name in (("pss", "pss_kb_each"), ("rss", "rss_kb_each"), ("descriptors", "descriptors_each")):
                sample[name] = (after[key] - before[key]) / opened["open"]
        return sample

    @staticmethod
    def usage(relay):
        found = {"kernel_kb": accounts.kernel_memory_kb()}
        if relay:
            found |= accounts.tree_memory_kb(relay.pid)
            found["descriptors"] = accounts.tree_descriptors(relay.pid)
        return found


class Flood(Metric):
    udp = True

    def __init__(self, size):
        self.size = size
        super().__init__(
            f"udp-flood-{size}",
            f"UDP one way, {size} B",
            [
                Figure("received_per_s", "received, packets/s", "{:,.0f}", main=True),
                Figure("sent_per_s", "offered, packets/s", "{:,.0f}"),
                Figure("path_cpu_us_each", "whole path, CPU-µs each", "{:.1f}", more_is_better=False),
            ],
        )

    def how(self, seconds):
        return f"{UDP_SOURCES} sources send as fast as the host allows, {seconds:g} s; what arrives at the server is counted."

    def trial(self, bed, peer, options):
        with self.running(bed, peer, [bed.load, "udp-sink", "TARGET", str(testbed.TARGET_PORT)]) as (address, sink, relay):
            meter = accounts.Meter(relay, options.baseline_cores)
            sent = load(bed, testbed.CLIENT, "udp-flood", address, self.size, UDP_SOURCES, options.seconds,
                        timeout_s=options.seconds + 20)
            time.sleep(0.2)
            cost = meter.read()
            sink.process.send_signal(signal.SIGTERM)
            got = json.loads(sink.process.communicate(timeout=5)[0].splitlines()[-1])
        if not got["received"]:
            raise Failed("nothing arrived")
        sample = {"sent": sent["sent"], "received": got["received"], **cost}
        sample["sent_per_s"] = sent["sent"] / sent["seconds"]
        sample["received_per_s"] = got["received"] / max(got["seconds"], sent["seconds"])
        if cost["path_cpu_s"] is not None:
            sample["path_cpu_us_each"] = cost["path_cpu_s"] / got["received"] * 1e6
        return sample


class Trips(Metric):
    udp = True

    def __init__(self, size):
        self.size = size
        super().__init__(
            f"udp-echo-{size}",
            f"UDP echo, {size} B",
            [
                Figure("per_s", "round trips/s", "{:,.0f}", main=True),
                Figure("p50_us", "p50, µs", "{:.0f}", more_is_better=False),
                Figure("p99_us", "p99, µs", "{:.0f}", more_is_better=False),
                Figure("errors", "lost", "{:.0f}", more_is_better=False),
            ],
        )

    def how(self, seconds):
        return f"{UDP_SOURCES} sources with {UDP_WINDOW} datagrams under way each, {seconds:g} s."

    def trial(self, bed, peer, options):
        with self.running(bed, peer, [bed.load, "udp-serve", "TARGET", str(testbed.TARGET_PORT)]) as (address, _, _relay):
            sample = load(bed, testbed.CLIENT, "udp-trips", address, self.size, UDP_SOURCES, UDP_WINDOW, options.seconds,
                          timeout_s=options.seconds + 20)
        if not sample["count"]:
            raise Failed("no datagram came back")
        return sample


ALL = {
    metric.name: metric
    for metric in [
        Stream(1, loopback=False), Stream(8, loopback=False), Stream(1, loopback=True), Stream(8, loopback=True),
        Exchanges.small(1), Exchanges.small(16), Exchanges.objects(256), Exchanges.objects(1024),
        Connections(), Idle(), Flood(64), Flood(1400), Trips(64), Trips(1400),
    ]
}
