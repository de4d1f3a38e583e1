#!/usr/bin/python3
"""A chat server on Tornado: /events is a long poll that is answered when something happens to the user (every 2 to 12 s in turn), or
after 90 s with a heartbeat. / answers at once."""
import asyncio
import random
import sys

import tornado.web

BODY = b"x" * 200


class Events(tornado.web.RequestHandler):
    async def get(self):
        await asyncio.sleep(random.uniform(2, 12) if random.random() < 0.5 else 90)
        self.set_header("Content-Length", len(BODY))
        self.finish(BODY)


class Messages(tornado.web.RequestHandler):
    def get(self):
        self.set_header("Content-Length", len(BODY))
        self.finish(BODY)


async def main():
    tornado.web.Application([("/events", Events), ("/", Messages)], log_function=lambda _: None).listen(int(sys.argv[1]))
    await asyncio.Event().wait()


asyncio.run(main())
