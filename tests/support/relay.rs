//! A TCP relay between clients and any server whose protocol is a request and its reply: it loses
//! requests and replies, and cuts connections.
//!
//! It acts on *bursts*: what a client sends in one go. It knows nothing of the protocol, so the burst
//! of a handshake counts like any other.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

pub use crate::wire::End;
use crate::wire::{Connections, Listener, lock};

/// What becomes of a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The server gets it, and the client its reply.
    Pass,
    /// The connection is cut before the server gets anything.
    CutBefore,
    /// The server gets it, and the connection is cut as soon as the reply begins.
    CutAfter,
    /// The server does not get it, and the connection stays silent.
    LoseRequest,
    /// The server gets it, and the connection stays silent.
    LoseReply,
    /// The server gets it, and the client gets the reply so much later.
    Delay(Duration),
}

type Decide = Box<dyn FnMut(&[u8]) -> Fate + Send>;

/// The relay. Dropping it closes its connections and ends its threads.
#[derive(Debug)]
pub struct Relay {
    listener: Listener,
    shared: Arc<Shared>,
}

struct Shared {
    target: Mutex<String>,
    decide: Mutex<Decide>,
    bursts: AtomicUsize,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("bursts", &self.bursts).finish_non_exhaustive()
    }
}

impl Relay {
    /// Starts a relay on a free loopback port, before the server at `address` (`host:port`).
    pub fn start(address: impl Into<String>) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port on 127.0.0.1");
        Relay::on(listener, address)
    }

    /// Starts a relay on a socket that listens, before the server at `address` (`host:port`).
    pub fn on(listener: TcpListener, address: impl Into<String>) -> Relay {
        let shared = Arc::new(Shared {
            target: Mutex::new(address.into()),
            decide: Mutex::new(Box::new(|_| Fate::Pass)),
            bursts: AtomicUsize::new(0),
        });
        let serving = Arc::clone(&shared);
        let listener = Listener::on(listener, move |client, open| serve(&serving, client, open));
        Relay { listener, shared }
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> String {
        self.listener.address()
    }

    /// Lets `decide` choose for each burst, of which it is given the bytes.
    pub fn decide(&self, decide: impl FnMut(&[u8]) -> Fate + Send + 'static) {
        *lock(&self.shared.decide) = Box::new(decide);
    }

    /// Lets the burst with this number from now on, counted from 0, have this fate, and all others
    /// pass.
    pub fn only(&self, number: usize, fate: Fate) {
        let mut seen = 0;
        self.decide(move |_| {
            seen += 1;
            if seen == number + 1 { fate } else { Fate::Pass }
        });
    }

    /// How many bursts clients have sent.
    pub fn bursts(&self) -> usize {
        self.shared.bursts.load(Ordering::SeqCst)
    }

    /// Cuts all connections.
    pub fn cut(&self) {
        self.listener.close_connections();
    }

    /// Ends all connections by a reset.
    pub fn reset(&self, end: End) {
        self.listener.reset_connections(end);
    }
}

/// What the two directions of a connection tell each other.
#[derive(Debug, Default)]
struct Direction {
    /// No reply gets through any more.
    is_silent: AtomicBool,
    /// The next reply cuts the connection.
    cuts: AtomicBool,
    /// The next reply comes so many milliseconds later.
    delay: AtomicUsize,
}

fn serve(shared: &Shared, client: &TcpStream, open: &Connections) {
    let Ok(server) = TcpStream::connect(lock(&shared.target).as_str()) else { return };
    // Without it only speed is lost.
    let _ = server.set_nodelay(true);
    let Some(_registered) = open.register(&server) else { return };
    let replies = Direction::default();
    thread::scope(|threads| {
        threads.spawn(|| {
            forward_replies(&server, client, &replies);
            close(client, &server);
        });
        forward_requests(shared, client, &server, &replies);
        close(client, &server);
    });
}

fn close(client: &TcpStream, server: &TcpStream) {
    // They fail when it is closed already.
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn forward_requests(
    shared: &Shared,
    mut client: &TcpStream,
    mut server: &TcpStream,
    replies: &Direction,
) {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let burst = match client.read(&mut buffer) {
            Ok(length) if length > 0 => &buffer[..length],
            _ => return,
        };
        shared.bursts.fetch_add(1, Ordering::SeqCst);
        let fate = (lock(&shared.decide))(burst);
        match fate {
            Fate::Pass => {}
            Fate::CutBefore => return,
            Fate::CutAfter => replies.cuts.store(true, Ordering::SeqCst),
            Fate::LoseRequest | Fate::LoseReply => replies.is_silent.store(true, Ordering::SeqCst),
            Fate::Delay(delay) => {
                replies.delay.store(delay.as_millis() as usize, Ordering::SeqCst);
            }
        }
        if fate != Fate::LoseRequest && server.write_all(burst).is_err() {
            return;
        }
    }
}

fn forward_replies(mut server: &TcpStream, mut client: &TcpStream, replies: &Direction) {
    let mut buffer = vec![0; 256 * 1024];
    loop {
        let reply = match server.read(&mut buffer) {
            Ok(length) if length > 0 => &buffer[..length],
            _ => return,
        };
        if replies.cuts.load(Ordering::SeqCst) {
            return;
        }
        if replies.is_silent.load(Ordering::SeqCst) {
            continue;
        }
        let delay = replies.delay.swap(0, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(delay as u64));
        if client.write_all(reply).is_err() {
            return;
        }
    }
}
