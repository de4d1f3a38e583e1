"""A WSGI application for gunicorn's gevent workers: each request runs a statement in PostgreSQL that takes a while. DOCKET_GREEN=yes
makes psycopg2 give way to other requests meanwhile."""
import os
import queue

import psycopg2

if os.environ.get("DOCKET_GREEN") == "yes":
    from psycogreen.gevent import patch_psycopg
    patch_psycopg()
IDLE = queue.LifoQueue()
ADDRESS = os.environ["DOCKET_POSTGRES"]


def application(_environ, start_response):
    try:
        connection = IDLE.get_nowait()
    except queue.Empty:
        connection = psycopg2.connect(ADDRESS)
        connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.02)")
    IDLE.put(connection)
    body = b"balanced\n"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
