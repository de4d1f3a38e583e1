#!/usr/bin/python3
"""Nodes of a robot that all ask an XML-RPC server at the same moments, four times a second, each on a new connection:
xmlrpc_nodes.py PORT NODES SECONDS. Prints the same figures as load.c."""
import sys
import threading
import time
import xmlrpc.client

from figures import Figures, side_by_side

port, nodes, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
figures = Figures(seconds)
EVERY_S = 0.25


def node(number):
    due = figures.begun
    while figures.goes_on():
        time.sleep(max(0, due - time.monotonic()))
        start = time.monotonic()
        try:
            with xmlrpc.client.ServerProxy(f"http://127.0.0.1:{port}/") as master:
                master.lookupNode(number)
            figures.answered(start)
        except (OSError, xmlrpc.client.Error):
            figures.failed()
        while due <= time.monotonic():
            due += EVERY_S


threading.stack_size(1 << 18)
side_by_side(node, range(nodes))
figures.print()
