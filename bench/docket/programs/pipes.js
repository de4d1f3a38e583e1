// A service that follows named pipes of sensors and serves files: `pipes.js PORT FOLDER PIPES FILE`. Each read of an empty pipe takes
// a thread of libuv's pool until something comes.
const { execFileSync } = require("child_process");
const fs = require("fs");
const http = require("http");
const path = require("path");

const [port, folder, pipes, file] = process.argv.slice(2);
for (let i = 0; i < Number(pipes); i++) {
  const pipe = path.join(folder, `sensor-${i}`);
  execFileSync("mkfifo", [pipe]);
  fs.open(pipe, "r+", (error, fd) => {
    if (error) throw error;
    fs.createReadStream(null, { fd }).on("data", (data) => console.log(`sensor ${i}: ${data}`));
  });
}

http.createServer((request, reply) => {
  fs.readFile(file, (error, body) => {
    reply.writeHead(error ? 500 : 200, { "Content-Length": error ? 0 : body.length });
    reply.end(error ? "" : body);
  });
}).listen(Number(port));
