// An HTTP service on Node with one fault per flag: `node service.js port=8080 timer-ms=20 ...`.
const crypto = require("crypto");
const dns = require("dns");
const fs = require("fs");
const http = require("http");

const flags = Object.fromEntries(process.argv.slice(2).map((a) => a.split("=")));
const number = (name, fallback = 0) => Number(flags[name] ?? fallback);
const body = Buffer.alloc(number("reply", 200), "x");
const agent = new http.Agent({ keepAlive: number("keep-alive", 1) === 1, maxSockets: number("sockets", 100) });
const file = (flags.fsync || "").startsWith("/") ? fs.openSync(flags.fsync, "a") : -1;

function compute(us) {
  const end = process.hrtime.bigint() + BigInt(us) * 1000n;
  let digest = "x";
  while (process.hrtime.bigint() < end) digest = crypto.createHash("md5").update(digest).digest("hex");
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
const ask = () =>
  new Promise((done, fail) => {
    const [host, port] = flags.ask.split(":");
    http.get({ host, port, agent, path: "/" }, (r) => r.resume().on("end", done)).on("error", fail);
  });
const hash = () => new Promise((done) => crypto.pbkdf2("secret", "salt", number("hash"), 32, "sha256", done));

const server = http.createServer(async (request, reply) => {
  if (number("timer-ms")) await sleep(number("timer-ms"));
  if (number("cpu-us")) compute(number("cpu-us"));
  if (file >= 0) {
    fs.writeSync(file, body);
    fs.fsyncSync(file);
  }
  if (number("hash")) await hash();
  if (flags.dns) await dns.promises.lookup(flags.dns).catch(() => {});
  for (let i = 0; flags.ask && i < number("times", 1); i++) await ask();
  reply.setHeader("Content-Length", body.length);
  reply.end(body);
});
server.keepAliveTimeout = 60000;
server.listen(number("port", 8080));
