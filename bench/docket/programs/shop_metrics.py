#!/usr/bin/python3
"""A web application with metrics in prometheus_client's multiprocess mode. Workers that have ended leave their files:
`shop_metrics.py leave FOLDER COUNT` makes the files of COUNT of them."""
import os
import sys
import time


def metrics():
    from prometheus_client import Counter, Histogram
    pages = Counter("pages", "pages served", ["path", "status"])
    seconds = Histogram("page_seconds", "time of a page", ["path"])
    for i in range(20):
        pages.labels(f"/page/{i}", "200").inc()
        seconds.labels(f"/page/{i}").observe(0.01)
    return pages, seconds


if __name__ == "__main__":
    folder, count = sys.argv[2], int(sys.argv[3])
    os.makedirs(folder, exist_ok=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    metrics()
    for name in os.listdir(folder):
        kind = name.split("_")[0]
        for i in range(count):
            with open(os.path.join(folder, name), "rb") as one, open(os.path.join(folder, f"{kind}_{1000000 + i}.db"), "wb") as other:
                other.write(one.read(1 << 16))
                other.truncate(1 << 20)
else:
    PAGES, SECONDS = metrics()


def application(environ, start_response):
    from prometheus_client import CollectorRegistry, generate_latest, multiprocess
    if environ["PATH_INFO"] == "/metrics":
        registry = CollectorRegistry()
        multiprocess.MultiProcessCollector(registry)
        body = generate_latest(registry)
    else:
        begun = time.monotonic()
        body = b"a page\n"
        PAGES.labels("/page/1", "200").inc()
        SECONDS.labels("/page/1").observe(time.monotonic() - begun)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
