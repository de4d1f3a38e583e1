// A service that asks a partner over HTTPS with the library needle in each request: `main.js PORT URL CERTIFICATE keep=0`.
// Needle makes an agent for a single call if it is given TLS options and no agent; with keep=1 it is given an agent that keeps connections.
const fs = require("fs");
const http = require("http");
const https = require("https");
const needle = require("needle");

const [port, url, certificate, keep] = process.argv.slice(2);
const ca = fs.readFileSync(certificate);
const options = keep === "keep=1"
  ? { agent: new https.Agent({ ca, keepAlive: true }), connection: "keep-alive" }
  : { ca, connection: "keep-alive" };

http.createServer(async (request, reply) => {
  try {
    const answer = await needle("get", url, options);
    const body = Buffer.from(answer.body.toString());
    reply.writeHead(200, { "Content-Length": body.length });
    reply.end(body);
  } catch (e) {
    reply.writeHead(502, { "Content-Length": 0 });
    reply.end();
    console.error(e.message);
  }
}).listen(Number(port));
