// A guestbook on Bun with bun:sqlite: guestbook.ts PORT FILE SYNCHRONOUS. Each request writes an entry in a transaction of its own.
import { Database } from "bun:sqlite";

const [port, file, synchronous] = process.argv.slice(2);
const db = new Database(file, { create: true });
db.exec("PRAGMA journal_mode = WAL");
db.exec(`PRAGMA synchronous = ${synchronous}`);
db.exec("CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, at INTEGER, text TEXT)");
const add = db.prepare("INSERT INTO entry (at, text) VALUES (?, ?)");
Bun.serve({
  hostname: "127.0.0.1",
  port: Number(port),
  async fetch(request) {
    const result = add.run(Date.now(), await request.text());
    return new Response(`entry ${result.lastInsertRowid}\n`);
  },
});
