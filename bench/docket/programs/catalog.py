"""A page that takes 60 values from several memcached servers. DOCKET_CLIENT is the library: pymemcache asks one server after the other,
memcache (python-memcached) sends all questions before it reads the first answer."""
import os
import threading

SERVERS = os.environ.get("DOCKET_SERVERS", "").split()
KEYS = [f"product:{i}" for i in range(60)]
LOCAL = threading.local()


def client():
    if not hasattr(LOCAL, "client"):
        if os.environ["DOCKET_CLIENT"] == "pymemcache":
            from pymemcache.client.hash import HashClient
            LOCAL.client = HashClient([tuple(s.split(":")) for s in SERVERS], use_pooling=False, no_delay=True)
            LOCAL.get, fill = LOCAL.client.get_many, LOCAL.client.set_many
        else:
            import memcache
            LOCAL.client = memcache.Client(SERVERS)
            LOCAL.get, fill = LOCAL.client.get_multi, LOCAL.client.set_multi
        fill({k: "x" * 100 for k in KEYS})
    return LOCAL.get


def application(_environ, start_response):
    found = client()(KEYS)
    body = f"{len(found)} products\n".encode()
    start_response("200 OK" if len(found) == len(KEYS) else "500 Incomplete", [("Content-Length", str(len(body)))])
    return [body]
