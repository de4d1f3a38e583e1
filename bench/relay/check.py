"""Checks that a peer relays correctly before it is measured, because the figures of a relay that alters or loses bytes are useless.

This process creates the sockets of both ends in their namespaces and uses one thread per direction.
"""
import concurrent.futures
import contextlib
import hashlib
import random
import socket
import time

import testbed

MIB = 1 << 20
TIMEOUT_S = 5
LATE_S = 1  # from the half-close to the answer
DATAGRAMS = (1, 64, 1400, 8192, 16384, 32768, 65507)


class Wrong(Exception):
    """The relay does not relay correctly; the message describes the error."""


def payload(seed, size):
    return random.Random(seed).randbytes(size)


def receive(sock, size):
    """Up to `size` bytes, or all until the end of the stream."""
    got = bytearray()
    while len(got) < size:
        part = sock.recv(min(MIB, size - len(got)))
        if not part:
            break
        got += part
    return bytes(got)


def same(got, wanted, direction):
    if len(got) != len(wanted):
        raise Wrong(f"{direction}: {len(got):,} of {len(wanted):,} bytes arrived")
    if hashlib.sha256(got).digest() != hashlib.sha256(wanted).digest():
        raise Wrong(f"{direction}: bytes were altered")


@contextlib.contextmanager
def connected(peer, path):
    """(client's socket, server's socket) of a connection through the peer."""
    with testbed.within(path.server):
        listener = socket.create_server((path.target if peer.address(path)[0] != path.direct else path.direct,
                                         testbed.TARGET_PORT))
    with testbed.within(path.client):
        client = socket.socket()
    with listener, client:
        for each in (listener, client):
            each.settimeout(TIMEOUT_S)
        client.connect(peer.address(path))
        client.sendall(b"!")  # some relays connect to the target only once there is data
        server = listener.accept()[0]
        with server:
            server.settimeout(TIMEOUT_S)
            if receive(server, 1) != b"!":
                raise Wrong("the first byte did not arrive")
            yield client, server


def both_ways(client, server):
    """Sends 8 MiB in both directions at the same time and compares what arrives."""
    up, down = payload(1, 8 * MIB), payload(2, 8 * MIB)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(client.sendall, up), pool.submit(server.sendall, down)]
        arrived_up, arrived_down = pool.submit(receive, server, len(up)), pool.submit(receive, client, len(down))
        for job in jobs:
            job.result()
        same(arrived_up.result(), up, "client to server")
        same(arrived_down.result(), down, "server to client")


def half_close(asking, answering):
    """One side half-closes; the other gets the end of data and answers later. Returns "yes", or "no" with the error."""
    question, answer = payload(3, MIB), payload(4, MIB)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(receive, answering, len(question) + 1)
        asking.sendall(question)
        asking.shutdown(socket.SHUT_WR)
        try:
            got = job.result()
        except TimeoutError:
            return "no: the half-close is not passed on"
        same(got, question, "before the half-close")
        time.sleep(LATE_S)
        job = pool.submit(receive, asking, len(answer) + 1)
        with contextlib.suppress(OSError):
            answering.sendall(answer)
            answering.shutdown(socket.SHUT_WR)
        try:
            got = job.result()
        except OSError:
            got = b""
    return "yes" if got == answer else f"no: a late answer is lost ({len(got):,} of {len(answer):,} bytes arrive)"


def tcp(peer, path, scratch):
    """{"half_close_client": ..., "half_close_server": ...}; raises Wrong."""
    child = peer.start(path, scratch)
    try:
        with connected(peer, path) as (client, server):
            both_ways(client, server)
        result = {}
        with connected(peer, path) as (client, server):
            result["half_close_client"] = half_close(client, server)
        with connected(peer, path) as (client, server):
            result["half_close_server"] = half_close(server, client)
        return result
    finally:
        if child:
            child.stop()


def udp(peer, path, scratch):
    """{"largest_datagram": bytes, "stable_source": bool, "invented": empty datagrams}; raises Wrong."""
    child = peer.start(path, scratch, udp=True)
    try:
        host = path.direct if peer.address(path)[0] == path.direct else path.target
        with testbed.within(path.server):
            server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            server.bind((host, testbed.TARGET_PORT))
        with testbed.within(path.client):
            client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            client.connect(peer.address(path))
        largest, sources, invented = 0, set(), 0
        with client, server:
            client.settimeout(1)
            server.settimeout(1)
            for size in DATAGRAMS:
                sent = payload(size, size)
                try:
                    client.send(sent)
                    got, source = server.recvfrom(MIB)
                    while not got:  # an empty datagram from the relay itself, which ends the session if it is echoed
                        invented += 1
                        got, source = server.recvfrom(MIB)
                    sources.add(source)
                    server.sendto(got, source)
                    back = client.recv(MIB)
                except OSError:
                    break
                if got != sent or back != sent:
                    break
                largest = size
        if largest < 1400:
            raise Wrong(f"no datagram above {largest} bytes comes back")
        return {"largest_datagram": largest, "stable_source": len(sources) == 1, "invented": invented}
    finally:
        if child:
            child.stop()
