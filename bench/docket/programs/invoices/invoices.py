"""A Celery application, and the web application that waits for the result of a task in each request. DOCKET_RESULTS is the result
back end. Used by `celery -A invoices worker` and `gunicorn invoices:application`."""
import os

from celery import Celery
from celery.signals import worker_ready

app = Celery("invoices", broker="redis://127.0.0.1:6379/0", backend=os.environ["DOCKET_RESULTS"])


@app.task
def total(prices):
    return sum(prices)


@worker_ready.connect
def ready(**_):
    with open(os.path.join(os.environ["DOCKET_DIR"], "worker-ready"), "w", encoding="ascii"):
        pass


def application(_environ, start_response):
    body = f"{total.delay([3, 4, 5]).get(timeout=8)}\n".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
