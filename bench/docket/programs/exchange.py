"""A currency exchange for WSGI servers: each page asks the rates of a partner at 127.0.0.1:8000."""
import http.client


def application(environ, start_response):
    partner = http.client.HTTPConnection("127.0.0.1", 8000, timeout=10)
    partner.request("GET", "/rates")
    body = b"rates: %d\n" % len(partner.getresponse().read())
    partner.close()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
