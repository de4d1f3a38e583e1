// A GraphQL server on PostgreSQL: `main.js PORT DATABASE loader=0`. Each post has an author, whom its resolver looks up; with loader=1
// the look-ups of a request are collected into one query. One client for all, as in many examples, whose queries run one by one.
const http = require("http");
const DataLoader = require("dataloader");
const { Client } = require("pg");
const { buildSchema, graphql } = require("graphql");

const [port, connectionString, loaders] = process.argv.slice(2);
const schema = buildSchema(`
  type Author { id: Int! name: String! }
  type Post { id: Int! title: String! author: Author! }
  type Query { posts(first: Int!): [Post!]! }
`);
const database = new Client({ connectionString });

const named = (row) => ({ id: row.id, name: `author ${row.id}` });

class Post {
  constructor(row, authors) {
    this.id = row.id;
    this.title = `post ${row.id}`;
    this.authorId = (row.id * 7) % 20000 + 1;
    this.authors = authors;
  }

  async author() {
    if (this.authors) return this.authors.load(this.authorId);
    const found = await database.query("select id, balance from account where id = $1", [this.authorId]);
    return named(found.rows[0]);
  }
}

const allOf = async (ids) => {
  const found = await database.query("select id, balance from account where id = any($1)", [ids]);
  const byId = new Map(found.rows.map((row) => [row.id, named(row)]));
  return ids.map((id) => byId.get(id));
};

const root = {
  posts: async ({ first }) => {
    const authors = loaders === "loader=1" ? new DataLoader(allOf) : null;
    const found = await database.query("select id from account where id > $1 order by id limit $2", [Math.random() * 10000 | 0, first]);
    return found.rows.map((row) => new Post(row, authors));
  },
};

const query = "{ posts(first: 60) { id title author { name } } }";
database.connect().then(() => {
  http.createServer(async (request, reply) => {
    const source = new URL(request.url, "http://x").searchParams.get("query") || query;
    const result = await graphql({ schema, source, rootValue: root });
    const body = JSON.stringify(result);
    reply.writeHead(result.errors ? 500 : 200, { "Content-Type": "application/json", "Content-Length": Buffer.byteLength(body) });
    reply.end(body);
  }).listen(Number(port));
});
