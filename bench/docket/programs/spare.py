"""A WSGI application that keeps a catalogue in memory. DOCKET_COLLECT=yes calls the garbage collector at the end of each request, as
some do against leaks."""
import gc
import os

PARTS = [{"number": i, "fits": [i + 1, i + 2], "name": f"part {i}"} for i in range(60000)]
COLLECT = os.environ.get("DOCKET_COLLECT") == "yes"


def application(environ, start_response):
    part = PARTS[hash(environ["PATH_INFO"]) % len(PARTS)]
    body = f"{part['name']} fits {part['fits']}\n".encode()
    if COLLECT:
        gc.collect()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
