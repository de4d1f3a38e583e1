#!/usr/bin/python3 -P
"""A shop's catalogue in a server of MongoDB's protocol. catalogue_mongo.py fill PORT N [ADDRESS] writes N articles; catalogue_mongo.py
load PORT N SECONDS CLIENTS FIELD looks articles up by FIELD (sku or _id) and prints the same figures as load.c. (-P: dns.py beside this
file is not the module that pymongo wants.)"""
import json
import random
import sys
import threading
import time

from pymongo import MongoClient

mode, port, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
address = sys.argv[4] if mode == "fill" and len(sys.argv) > 4 else "127.0.0.1"
articles = MongoClient(f"mongodb://{address}:{port}/", serverSelectionTimeoutMS=20000).shop.articles
if mode == "fill":
    for k in range(0, n, 1000):
        articles.insert_many([{"_id": f"a{i}", "sku": f"a{i}", "name": f"Article {i}", "price": i % 100, "text": "x" * 200}
                              for i in range(k, min(n, k + 1000))])
    sys.exit()
seconds, clients, field = float(sys.argv[4]), int(sys.argv[5]), sys.argv[6]
taken, errors, lock = [], [0], threading.Lock()
begun = time.monotonic()
stop = begun + seconds


def work():
    while time.monotonic() < stop:
        start = time.monotonic()
        found = articles.find_one({field: f"a{random.randrange(n)}"})
        with lock:
            if found:
                taken.append((time.monotonic() - start) * 1e3)
            else:
                errors[0] += 1
        time.sleep(0.02)


threads = [threading.Thread(target=work) for _ in range(clients)]
for t in threads:
    t.start()
for t in threads:
    t.join()
spent = time.monotonic() - begun
taken.sort()
k = len(taken)
out = {"requests": k, "errors": errors[0], "rate": round(k / spent, 3)}
if k:
    out.update(mean_ms=round(sum(taken) / k, 3), p50_ms=round(taken[k // 2], 3), p99_ms=round(taken[int(k * 0.99)], 3))
print(json.dumps(out))
