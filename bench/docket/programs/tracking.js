// A service that tells browsers about their orders with server-sent events: `node tracking.js PORT`. /events never ends: an event every
// 3 to 9 s in turn, and a comment as a heartbeat each second. Other paths answer at once.
const http = require("http");
let visitor = 0;

http
  .createServer((request, reply) => {
    if (request.url !== "/events") {
      reply.setHeader("Content-Length", 3);
      return reply.end("ok\n");
    }
    reply.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no" });
    reply.write(": hello\n\n");
    const beat = setInterval(() => reply.write(": beat\n\n"), 1000);
    const news = setInterval(() => reply.write('event: moved\ndata: {"parcels": 1}\n\n'), 3000 + (visitor++ % 7) * 1000);
    request.on("close", () => [beat, news].forEach(clearInterval));
  })
  .listen(Number(process.argv[2]));
