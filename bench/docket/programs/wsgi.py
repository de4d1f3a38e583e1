"""A WSGI application for gunicorn. Environment variables define the work of a request."""
import hashlib
import os
import threading
import time

LOCAL = threading.local()
SQL = os.environ.get("DOCKET_SQL", "")
SQL_TIMES = int(os.environ.get("DOCKET_SQL_TIMES", "1"))
DATABASE = os.environ.get("DOCKET_DATABASE", "")
SLEEP = float(os.environ.get("DOCKET_SLEEP_MS", "0")) / 1e3
CPU = float(os.environ.get("DOCKET_CPU_US", "0")) / 1e6
REDIS = os.environ.get("DOCKET_REDIS", "")
FRESH = os.environ.get("DOCKET_FRESH", "") == "1"


def database():
    held = getattr(LOCAL, "database", None)
    if held is None or FRESH:
        if DATABASE.startswith("maria:"):
            import pymysql
            held = pymysql.connect(host="127.0.0.1", port=int(DATABASE[6:]), user="docket", database="docket", autocommit=True)
        else:
            import psycopg2
            held = psycopg2.connect(DATABASE)
            held.autocommit = True
        LOCAL.database = held
    return held


def ask_redis(command):
    import socket
    s = getattr(LOCAL, "redis", None)
    if s is None:
        host, _, port = REDIS.partition(":")
        s = LOCAL.redis = socket.create_connection((host, int(port)))
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.sendall(command.encode() + b"\r\n")
    got = b""
    while not got.endswith(b"\r\n"):
        got += s.recv(65536)


def application(environ, start_response):
    if SLEEP:
        time.sleep(SLEEP)
    if CPU:
        end, digest = time.perf_counter() + CPU, b"x"
        while time.perf_counter() < end:
            digest = hashlib.md5(digest).digest()
    if REDIS:
        ask_redis(os.environ["DOCKET_COMMAND"])
    if SQL:
        cursor = database().cursor()
        for _ in range(SQL_TIMES):
            cursor.execute(SQL)
        cursor.close()
        if FRESH:
            LOCAL.database.close()
    body = b"x" * 200
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
