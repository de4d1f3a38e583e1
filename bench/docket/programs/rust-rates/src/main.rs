//! A service on axum that asks another one for a rate in each request, with calls that block: rust-rates PORT HOST:PORT yes|no.
//! With "yes" the call runs on a thread for such calls, with "no" on a thread of the runtime.
use std::io::{Read, Write};
use std::net::TcpStream;

use axum::{extract::State, routing::get, Router};

struct Rates {
    peer: &'static str,
    apart: bool,
}

fn ask(peer: &str) -> String {
    let mut stream = TcpStream::connect(peer).expect("the rates service cannot be reached");
    write!(stream, "GET / HTTP/1.0\r\nHost: {peer}\r\n\r\n").expect("the rates service takes no request");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("the rates service gives no reply");
    format!("{} bytes of rates\n", reply.len())
}

async fn rates(State(rates): State<&'static Rates>) -> String {
    if rates.apart {
        tokio::task::spawn_blocking(|| ask(rates.peer)).await.expect("the call ends")
    } else {
        ask(rates.peer)
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let port: u16 = arguments.next().and_then(|p| p.parse().ok()).expect("PORT");
    let peer: &'static str = Box::leak(arguments.next().expect("HOST:PORT").into_boxed_str());
    let held: &'static Rates = Box::leak(Box::new(Rates { peer, apart: arguments.next().as_deref() == Some("yes") }));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        axum::serve(listener, Router::new().route("/", get(rates)).with_state(held)).await.expect("serves");
    });
}
