#!/usr/bin/python3
"""A WSGI application on Twisted Web, in the threads of its reactor: twisted_pages.py PORT PARTNER-PORT THREADS. A page asks a rates
service."""
import sys
import urllib.request

from twisted.internet import reactor
from twisted.web.server import Site
from twisted.web.wsgi import WSGIResource

port, partner, threads = map(int, sys.argv[1:4])


def application(environ, start_response):
    urllib.request.urlopen(f"http://127.0.0.1:{partner}/rate", timeout=5).read()
    body = b"rate 1.25\n"
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


reactor.suggestThreadPoolSize(threads)
reactor.listenTCP(port, Site(WSGIResource(reactor, reactor.getThreadPool(), application)), interface="127.0.0.1")
reactor.run()
