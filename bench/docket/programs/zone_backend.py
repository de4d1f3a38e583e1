#!/usr/bin/python3
"""A coprocess of PowerDNS' pipe backend (version 1 of its protocol). It asks the address of each name of an inventory service at
127.0.0.1:8000."""
import http.client
import sys


def say(*fields):
    sys.stdout.write("\t".join(fields) + "\n")


inventory = http.client.HTTPConnection("127.0.0.1", 8000, timeout=5)
for line in sys.stdin:
    fields = line.rstrip("\n").split("\t")
    if fields[0] == "HELO":
        say("OK", "inventory")
    elif fields[0] == "Q":
        name, kind = fields[1].lower(), fields[3]
        if kind in ("SOA", "ANY") and name == "hosts.test":
            say("DATA", name, "IN", "SOA", "3600", "-1", "ns.hosts.test admin.hosts.test 1 3600 600 86400 60")
        if kind in ("A", "ANY") and name != "hosts.test":
            inventory.request("GET", "/" + name)
            inventory.getresponse().read()
            say("DATA", name, "IN", "A", "60", "-1", "10.1.2.3")
        say("END")
    else:
        say("END")
    sys.stdout.flush()
