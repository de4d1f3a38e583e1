#!/usr/bin/python3 -P
"""A shop's catalogue in a server of MongoDB's protocol. catalogue_mongo.py fill PORT N [ADDRESS] writes N articles; catalogue_mongo.py
load PORT N SECONDS CLIENTS FIELD looks articles up by FIELD (sku or _id) and prints the same figures as load.c. (-P: dns.py beside this
file is not the module that pymongo wants.)"""
import os
import random
import sys
import time

from pymongo import MongoClient

sys.path.append(os.path.dirname(__file__))
from figures import Figures, side_by_side  # noqa: E402

mode, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
address = sys.argv[4] if mode == "fill" and len(sys.argv) > 4 else "127.0.0.1"
articles = MongoClient(f"mongodb://{address}:{port}/", serverSelectionTimeoutMS=20000).shop.articles
if mode == "fill":
    for k in range(0, n, 1000):
        articles.insert_many([{"_id": f"a{i}", "sku": f"a{i}", "name": f"Article {i}", "price": i % 100, "text": "x" * 200}
                              for i in range(k, min(n, k + 1000))])
    sys.exit()
seconds, clients, field = float(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
figures = Figures(seconds)


def work(_):
    while figures.goes_on():
        start = time.monotonic()
        found = articles.find_one({field: f"a{random.randrange(n)}"})
        if found:
            figures.answered(start)
        else:
            figures.failed()
        time.sleep(0.02)


side_by_side(work, range(clients))
figures.print()
