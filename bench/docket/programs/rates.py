"""A WSGI application that asks an API for the rate of the day with the library requests, as in its first example (DOCKET_SESSION=0) or
with a session for each thread. DOCKET_API is the address, DOCKET_CA the certificate that signed
the API's."""
import os
import threading

import requests

API, CA, LOCAL = os.environ["DOCKET_API"], os.environ["DOCKET_CA"], threading.local()


def application(_environ, start_response):
    if os.environ["DOCKET_SESSION"] == "0":
        rate = requests.get(API, verify=CA, timeout=10)
    else:
        if not hasattr(LOCAL, "session"):
            LOCAL.session = requests.Session()
        rate = LOCAL.session.get(API, verify=CA, timeout=10)
    start_response("200 OK", [("Content-Length", str(len(rate.content)))])
    return [rate.content]
