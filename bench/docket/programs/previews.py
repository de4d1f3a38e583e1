"""A web application that has previews made by the workers of RQ, and waits for them on a list in redis. A preview is an HTTP request
to the service that renders it. Used by `rq worker previews` and `gunicorn previews:application`."""
import urllib.request
import uuid

import redis
import rq

HELD = redis.Redis()
QUEUE = rq.Queue("previews", connection=HELD)


def render(answer):
    with urllib.request.urlopen("http://127.0.0.1:8000/", timeout=10) as reply:
        HELD.lpush(answer, reply.read())


def application(_environ, start_response):
    answer = f"answer:{uuid.uuid4()}"
    QUEUE.enqueue(render, answer, result_ttl=0)
    body = HELD.blpop([answer], timeout=8)[1]
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
