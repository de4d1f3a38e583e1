// An HTTP service that reads keys of redis, and a worker in the same process that waits for jobs with BRPOPLPUSH: main.js PORT REDIS_PORT
// shared|own. With `shared` both use one client, which has one connection.
'use strict';
const http = require('http');
const Redis = require('ioredis');

const [port, redisPort, connection] = process.argv.slice(2);
const redis = new Redis(Number(redisPort), '127.0.0.1');
const waiting = connection === 'shared' ? redis : redis.duplicate();

async function work() {
    for (;;) {
        const job = await waiting.brpoplpush('jobs', 'jobs-in-work', 1);
        if (job) await redis.lrem('jobs-in-work', 1, job);
    }
}

http.createServer(async (request, response) => {
    const stock = await redis.get('stock');
    const body = `There are ${stock || 'no'} teas.\n`;
    response.writeHead(200, {'Content-Length': Buffer.byteLength(body)});
    response.end(body);
}).listen(Number(port));
work();
