"""Loads messages (*.message) and rows.parquet from a directory into the tables of sockets.sql with ClickHouse (chdb), and
the Parquet file with DuckDB, and prints what each of them found: tables_read.py DIRECTORY ROWS."""
import glob
import os
import sys

import duckdb
from chdb import session

FOUND = "count(), uniqExact(socket), sum(bytes_sent), any(host), any(congestion)"


def say(reader, values):
    count, sockets, sent, host, congestion = values
    if isinstance(congestion, bytes):
        congestion = congestion.decode()
    print(f"{reader}: {count} rows, {sockets} sockets, bytes_sent {sent}, host {host}, {congestion}", flush=True)


def clickhouse(directory):
    database = session.Session(os.path.join(directory, "chdb"))
    with open(os.path.join(directory, "sockets.sql"), encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("--")]
    database.query("CREATE DATABASE t ENGINE = Atomic")
    database.query("USE t")
    for statement in "".join(lines).split(";\n"):
        # There is no broker here; the queue has the columns of `sockets`.
        if "sockets_queue" not in statement and statement.strip():
            database.query(statement)
    schema = f"format_schema = '{directory}/clickhouse.proto:Row'"
    for message in glob.glob(os.path.join(directory, "*.message")):
        database.query(f"INSERT INTO t.sockets SELECT * FROM file('{message}', 'ProtobufList', '{columns(database)}') "
                       f"SETTINGS {schema}")
    found = database.query(f"SELECT {FOUND} FROM t.sockets WHERE family != 0", "TabSeparated")
    say("clickhouse protobuf", str(found).strip().split("\t"))
    account = database.query("SELECT completeness.emitted, count() FROM t.sockets WHERE family = 0 GROUP BY 1")
    assert str(account).strip() == "10,1", account
    peer = database.query("SELECT any(toString(remote)) LIKE '::ffff:10.1.%' FROM t.sockets WHERE family = 2")
    assert str(peer).strip() == "1", peer
    names = ", ".join(f"`{name}`" for name in names_of(database, "sockets_files"))
    database.query(f"INSERT INTO t.sockets_files ({names}) SELECT {names} FROM file('{directory}/rows.parquet', 'Parquet')")
    found = database.query(f"SELECT {FOUND} FROM t.sockets_files", "TabSeparated")
    say("clickhouse parquet", str(found).strip().split("\t"))


def names_of(database, table):
    query = f"SELECT name FROM system.columns WHERE database = 't' AND table = '{table}' AND default_kind = ''"
    return str(database.query(query, "TabSeparated")).split()


def columns(database):
    query = "SELECT name, type FROM system.columns WHERE database = 't' AND table = 'sockets' AND default_kind = ''"
    rows = str(database.query(query, "TabSeparatedRaw")).strip().split("\n")
    pairs = [row.split("\t") for row in rows]
    return ", ".join(f"`{name}` {kind}" for name, kind in pairs).replace("'", "\\'")


def main():
    directory = sys.argv[1]
    query = f"SELECT count(*), count(DISTINCT socket), sum(bytes_sent), min(host), min(congestion) " \
            f"FROM read_parquet('{directory}/rows.parquet')"
    say("duckdb parquet", duckdb.sql(query).fetchall()[0])
    clickhouse(directory)


main()
